#include "search.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "random.hpp"

namespace tensile::planner {
namespace {

constexpr int trial_passes = 2;     // timing passes for choices on trial; more passes are more exact and slower
constexpr int settling_passes = 3;  // timing passes for accepted choices
constexpr int alone_for = 4;        // single steps that must succeed before several choices are made at once again
constexpr double least_surprise = 0.002;  // allowed beyond twice the estimated wait, as a part of an iteration
constexpr double lane_prices[] = {0.0, 0.02, 0.1, 0.3};  // values of `lane_price` that `improve` draws from

}  // namespace

// Candidates by score, the best first. They form a heap instead of a sorted list, because only a few are taken.
class Search::Ranking {
 public:
  Ranking(const std::vector<Candidate>& candidates, const Search& search) {
    for (const Candidate& candidate : candidates)
      if (!search.refused(candidate)) heap_.push_back(&candidate);
    std::make_heap(heap_.begin(), heap_.end(), worse);
  }

  bool empty() const { return heap_.empty(); }

  const Candidate& next() {
    std::pop_heap(heap_.begin(), heap_.end(), worse);
    const Candidate& best = *heap_.back();
    heap_.pop_back();
    return best;
  }

 private:
  static bool worse(const Candidate* a, const Candidate* b) {
    return a->score != b->score ? a->score < b->score : std::pair(a->gap, a->choice) > std::pair(b->gap, b->choice);
  }

  std::vector<const Candidate*> heap_;
};

Search::Search(StepArrays arrays)
    : step_(std::move(arrays)),
      layout_(step_, bench_),
      trial_(step_, bench_),
      best_(step_, bench_),
      candidates_(step_, choices_),
      refused_(step_.gaps.size(), 0) {
  clear();
}

Choices Search::nothing() const {
  return {std::vector<Choice>(step_.gaps.size(), Choice::keep), std::vector<Cover>(step_.gaps.size())};
}

void Search::clear() {
  choices_ = nothing();
  settle();
}

void Search::uncover() {
  choices_.room_bytes.reset();
  choices_.cover.assign(step_.gaps.size(), {});
  settle();
}

void Search::exhaust() {
  choices_.room_bytes.reset();
  choices_.choice.assign(step_.gaps.size(), Choice::swap);
  for (std::size_t gap = 0; gap < step_.gaps.size(); ++gap)
    choices_.cover[gap] = {step_.gaps[gap].after + 1, step_.gaps[gap].need - 1};
  settle();
}

void Search::choose(Choices choices) {
  if (choices.choice.size() != step_.gaps.size() || choices.cover.size() != step_.gaps.size())
    throw std::invalid_argument("search: one choice for each gap is needed");
  for (std::size_t k = 0; k < step_.gaps.size(); ++k) {
    const Gap& gap = step_.gaps[k];
    const Cover& cover = choices.cover[k];
    if (cover.lo != none && (cover.lo <= gap.after || cover.hi < cover.lo || cover.hi >= gap.need))
      throw std::invalid_argument("search: a swap is to cover operators outside its gap");
    if (choices.choice[k] == Choice::drop && !step_.droppable(gap))
      throw std::invalid_argument("search: something is dropped that cannot be made again");
  }
  std::swap(choices_, choices);
  if (settle()) return;
  std::swap(choices_, choices);
  throw std::invalid_argument("search: something dropped cannot be made again");
}

// --- changing choices --------------------------------------------------------------------------------------------

void Search::put(Index gap, Choice choice, Cover cover) {
  undo_.push_back({gap, choices_.choice[at(gap)], choices_.cover[at(gap)]});
  choices_.choice[at(gap)] = choice;
  choices_.cover[at(gap)] = cover;
}

void Search::take_back() {
  for (; !undo_.empty(); undo_.pop_back()) {
    choices_.choice[at(undo_.back().gap)] = undo_.back().choice;
    choices_.cover[at(undo_.back().gap)] = undo_.back().cover;
  }
}

bool Search::try_out() {
  ++layouts_;
  return trial_.lay(choices_, trial_passes, layout_);
}

void Search::accept(Layout& layout) {
  undo_.clear();
  std::swap(layout_, layout);
}

bool Search::settle() {
  ++layouts_;
  if (!trial_.lay(choices_, settling_passes, layout_)) return false;
  accept(trial_);
  return true;
}

Search::Excess Search::excess(const Layout& layout, Bytes limit_bytes) const {
  return {layout.excess(limit_bytes), layout.iteration_ns};
}

Ns Search::lane_ns(const Layout& layout) const {
  Ns sum = 0;
  for (const Move& move : layout.moves)
    sum += step_.arrays.in_ns[at(move.tensor)] + (move.copies ? step_.arrays.out_ns[at(move.tensor)] : 0);
  return sum;
}

// --- lowering the peak -------------------------------------------------------------------------------------------

bool Search::lower(Bytes limit_bytes, const GreedyOptions& options, Index most_layouts) {
  const Index end = layouts_ + most_layouts;
  const int most_together = std::max(1, options.together);
  int together = most_together;
  int alone = 0;  // single steps since several choices at once last failed
  double surprise = options.surprise < 1 ? least_surprise : options.surprise;
  forgive();
  while (layout_.peak_bytes() > limit_bytes) {
    if (layouts_ >= end) return false;
    Ranking ranked(candidates_.find(layout_, limit_bytes, options), *this);
    if (ranked.empty()) return false;
    if (together > 1) {
      const bool taken = step_together(ranked, limit_bytes, together, surprise, options.careful);
      together = taken ? std::min(2 * together, most_together) : together / 2;
      if (together == 1)
        surprise = std::min(2 * surprise, options.surprise);  // otherwise the search would need too many small steps
    } else if (step_best(ranked, limit_bytes, options)) {
      forgive();
      if (most_together > 1 && ++alone == alone_for) {
        together = 2;
        alone = 0;
      }
    }
  }
  return true;
}

// Take the best candidates of several tensors at once. False, without any change, if that does not lower the load or
// makes the iteration too slow.
bool Search::step_together(Ranking& ranked, Bytes limit_bytes, int together, double surprise, bool careful) {
  const Excess was = excess(layout_, limit_bytes);
  std::vector<Index> tensors;
  double foreseen = 0;
  std::vector<const Candidate*> swaps;
  while (!ranked.empty() && tensors.size() < at(together)) {
    const Candidate& candidate = ranked.next();
    if (candidate.score <= 0) break;
    const Index tensor = step_.gaps[at(candidate.gap)].tensor;
    if (std::find(tensors.begin(), tensors.end(), tensor) != tensors.end()) continue;
    const bool new_swap = candidate.due_ns != 0;
    if (new_swap && !tensors.empty() && careful && !fits_beside(candidate, swaps)) continue;
    tensors.push_back(tensor);
    if (new_swap) swaps.push_back(&candidate);
    put(candidate.gap, candidate.choice, candidate.cover);
    foreseen += candidate.cost_ns;
  }
  const double allowed = 2 * foreseen + surprise * static_cast<double>(was.time);
  if (!tensors.empty() && try_out()) {
    const Excess now = excess(trial_, limit_bytes);
    if (now.bytes < was.bytes && static_cast<double>(now.time - was.time) <= allowed) {
      accept(trial_);
      return true;
    }
  }
  take_back();
  return false;
}

// Return whether the lanes have room for one more swap around the same peak beside the swaps that are chosen with it.
// For every swap, its own copies and those of the swaps that leave later, or must be back earlier, must fit together
// into the free time that the swap alone would have.
bool Search::fits_beside(const Candidate& candidate, const std::vector<const Candidate*>& others) const {
  const auto out_of = [&](const Candidate& c) { return step_.arrays.out_ns[at(step_.gaps[at(c.gap)].tensor)]; };
  const auto in_of = [&](const Candidate& c) { return step_.arrays.in_ns[at(step_.gaps[at(c.gap)].tensor)]; };
  const auto fits = [&](const Candidate& c, const Candidate* added) {
    Ns out = out_of(c) + (added != nullptr && added->leaves_ns >= c.leaves_ns ? out_of(*added) : 0);
    Ns in = in_of(c) + (added != nullptr && added->due_ns <= c.due_ns ? in_of(*added) : 0);
    for (const Candidate* other : others) {
      if (other == &c) continue;
      out += other->leaves_ns >= c.leaves_ns ? out_of(*other) : 0;
      in += other->due_ns <= c.due_ns ? in_of(*other) : 0;
    }
    return out <= c.out_room_ns && in <= c.in_room_ns;
  };
  if (!fits(candidate, nullptr)) return false;
  return std::all_of(others.begin(), others.end(), [&](const Candidate* other) { return fits(*other, &candidate); });
}

// Lay out the best few candidates and take the one with the best result. Candidates that do not lower the load are
// refused until `forgive`.
bool Search::step_best(Ranking& ranked, Bytes limit_bytes, const GreedyOptions& options) {
  const Excess was = excess(layout_, limit_bytes);
  const Ns lanes = lane_ns(layout_);
  double best = 0;
  const Candidate* chosen = nullptr;
  for (int tried = std::max(1, options.tried); tried > 0 && !ranked.empty(); --tried) {
    const Candidate& candidate = ranked.next();
    put(candidate.gap, candidate.choice, candidate.cover);
    const double gain = try_out() ? static_cast<double>(was.bytes - trial_.excess(limit_bytes)) : 0;
    take_back();
    if (gain <= 0) {
      refuse(candidate);
      continue;
    }
    const auto waits = static_cast<double>(std::max<Ns>(0, trial_.iteration_ns - was.time));
    const auto moved = static_cast<double>(std::max<Ns>(0, lane_ns(trial_) - lanes));
    const double score = gain / (waits + options.lane_price * moved + step_price * static_cast<double>(was.time) + 1);
    if (score <= best) continue;
    best = score;
    chosen = &candidate;
    std::swap(best_, trial_);
  }
  if (chosen == nullptr) return false;
  put(chosen->gap, chosen->choice, chosen->cover);
  accept(best_);
  return true;
}

bool Search::refused(const Candidate& candidate) const {
  return (refused_[at(candidate.gap)] & 1U << static_cast<unsigned>(candidate.choice)) != 0;
}

void Search::refuse(const Candidate& candidate) {
  refused_[at(candidate.gap)] =
      static_cast<std::uint8_t>(refused_[at(candidate.gap)] | 1U << static_cast<unsigned>(candidate.choice));
  refusals_.push_back(candidate.gap);
}

void Search::forgive() {
  for (; !refusals_.empty(); refusals_.pop_back()) refused_[at(refusals_.back())] = 0;
}

// --- undoing choices and trying again ------------------------------------------------------------------------------

void Search::prune(Bytes limit_bytes, int most) {
  std::vector<std::pair<double, Index>> chosen;
  for (Index gap = 0; gap < static_cast<Index>(step_.gaps.size()); ++gap) {
    const Index tensor = step_.gaps[at(gap)].tensor;
    const auto size = static_cast<double>(step_.arrays.size_bytes[at(tensor)]);
    switch (choices_.choice[at(gap)]) {
      case Choice::keep:
        break;
      case Choice::swap:
        chosen.emplace_back(static_cast<double>(step_.arrays.in_ns[at(tensor)]) / size, gap);
        break;
      case Choice::drop:
        chosen.emplace_back(static_cast<double>(step_.arrays.latency_ns[at(step_.first_writer[at(tensor)])]) / size,
                            gap);
        break;
    }
  }
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (chosen.size() > at(most)) chosen.resize(at(most));
  for (const auto& [price, gap] : chosen) {
    put(gap, Choice::keep, {});
    if (try_out() && trial_.peak_bytes() <= limit_bytes && trial_.iteration_ns <= layout_.iteration_ns) {
      accept(trial_);
    } else {
      take_back();
    }
  }
}

int Search::improve(Bytes limit_bytes, const GreedyOptions& options, Index most, std::uint64_t seed) {
  const Index end = layouts_ + most;
  Random random(seed);
  const auto ops = static_cast<std::uint64_t>(step_.operators());
  int better = 0;
  Choices before = choices_;
  Layout laid = layout_;
  while (layouts_ < end) {
    const auto width = static_cast<Index>(1 + ops / 24 + random.below(1 + ops / 4));
    const auto first = static_cast<Index>(random.below(ops));
    bool changed = false;
    ++layouts_;  // count a round that undoes nothing too, so that the loop ends
    for (std::size_t number = 0; number < step_.gaps.size(); ++number) {
      if (choices_.choice[number] == Choice::keep) continue;
      const Gap& gap = step_.gaps[number];
      const bool near =
          (gap.after >= first && gap.after < first + width) || (gap.need >= first && gap.need < first + width);
      if (!near || random.below(2) == 0) continue;
      choices_.choice[number] = Choice::keep;
      choices_.cover[number] = {};
      changed = true;
    }
    GreedyOptions other = options;
    other.lane_price = lane_prices[random.below(std::size(lane_prices))];
    other.tried = 1 + static_cast<int>(random.below(4));
    const bool done = changed && settle() && lower(limit_bytes, other, end - layouts_) && settle();
    if (done && layout_.peak_bytes() <= limit_bytes && layout_.iteration_ns < laid.iteration_ns) {
      ++better;
      before = choices_;
      laid = layout_;
    } else {
      choices_ = before;
      layout_ = laid;
    }
  }
  return better;
}

}  // namespace tensile::planner
