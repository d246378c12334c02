#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

namespace tensile::planner {
namespace {

constexpr int trial_passes = 2;
constexpr int settling_passes = 3;
constexpr int deepest_estimate = 12;
constexpr int alone_for = 4;
constexpr double least_surprise = 0.002;  // of an iteration, beyond twice the foreseen wait
constexpr double step_price = 1e-4;  // of an iteration, for each choice: many small tensors are not worth one large
constexpr double impossible_ns = 1e18;
constexpr double lane_prices[] = {0.0, 0.02, 0.1, 0.3};

// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

 private:
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31U);
  }
  std::uint64_t state_;
};

// How long a lane is busy within a stretch of the periodic axis.
class Busy {
 public:
  Busy(std::vector<std::pair<Ns, Ns>> stretches, Ns period) : period_(period) {
    std::vector<std::pair<Ns, Ns>> parts;
    for (auto [start, stop] : stretches) {
      const Ns turn = start >= 0 ? start / period : -((-start + period - 1) / period);
      start -= turn * period;
      stop -= turn * period;
      parts.emplace_back(start, std::min(stop, period));
      if (stop > period) parts.emplace_back(0, std::min(stop - period, period));
    }
    std::sort(parts.begin(), parts.end());
    Ns sum = 0;
    for (const auto& [start, stop] : parts) {
      starts_.push_back(start);
      before_.push_back(sum);
      lengths_.push_back(stop - start);
      sum += stop - start;
    }
    total_ = sum;
  }

  Ns free(Ns from, Ns to) const { return std::max<Ns>(0, to - from - (upto(to) - upto(from))); }

 private:
  Ns upto(Ns time) const {
    const Ns turn = time >= 0 ? time / period_ : -((-time + period_ - 1) / period_);
    const Ns rest = time - turn * period_;
    const auto next = std::upper_bound(starts_.begin(), starts_.end(), rest);
    Ns found = turn * total_;
    if (next == starts_.begin()) return found;
    const auto k = static_cast<std::size_t>(next - starts_.begin()) - 1;
    return found + before_[k] + std::min(lengths_[k], rest - starts_[k]);
  }

  Ns period_;
  Ns total_ = 0;
  std::vector<Ns> starts_;
  std::vector<Ns> before_;
  std::vector<Ns> lengths_;
};

}  // namespace

void Search::clear() {
  choices_.choice.assign(step_.gaps.size(), Choice::keep);
  choices_.cover.assign(step_.gaps.size(), Cover{});
  settle();
}

void Search::exhaust() {
  choices_.choice.assign(step_.gaps.size(), Choice::swap);
  for (std::size_t gap = 0; gap < step_.gaps.size(); ++gap)
    choices_.cover[gap] = {step_.gaps[gap].after + 1, step_.gaps[gap].need - 1};
  settle();
}

void Search::choose(Choices choices) {
  if (choices.choice.size() != step_.gaps.size() || choices.cover.size() != step_.gaps.size())
    throw std::invalid_argument("search: one choice for each gap is needed");
  choices_ = std::move(choices);
  if (!settle()) throw std::invalid_argument("search: something dropped cannot be made again");
}

bool Search::settle() {
  ++layouts_;
  if (!layout_.lay(choices_)) return false;
  layout_.time(choices_, settling_passes);
  return true;
}

void Search::retime(std::vector<Ns> latency_ns, std::vector<Ns> out_ns, std::vector<Ns> in_ns) {
  if (latency_ns.size() != step_.arrays.latency_ns.size() || out_ns.size() != step_.arrays.out_ns.size() ||
      in_ns.size() != step_.arrays.in_ns.size())
    throw std::invalid_argument("search: new times do not fit the step");
  step_.arrays.latency_ns = std::move(latency_ns);
  step_.arrays.out_ns = std::move(out_ns);
  step_.arrays.in_ns = std::move(in_ns);
  settle();
}

Search::Standing Search::standing(Bytes limit_bytes) const { return {layout_.excess(limit_bytes), layout_.iteration_ns}; }

bool Search::apply(const Candidate& candidate) {
  choices_.choice[at(candidate.gap)] = candidate.choice;
  choices_.cover[at(candidate.gap)] = candidate.cover;
  ++layouts_;
  if (!layout_.lay(choices_)) return false;
  layout_.time(choices_, trial_passes);
  return true;
}

Ns Search::lane_ns(const Layout& layout) const {
  Ns sum = 0;
  for (const Move& one : layout.moves)
    sum += step_.arrays.in_ns[at(one.tensor)] + (one.copies ? step_.arrays.out_ns[at(one.tensor)] : 0);
  return sum;
}

// --- going down --------------------------------------------------------------------------------------------------

bool Search::lower(Bytes limit_bytes, const Manner& manner, Index most_layouts) {
  const Index end = layouts_ + most_layouts;
  std::set<std::pair<Index, Choice>> refused;
  const int most_together = std::max(1, manner.together);
  int together = most_together;
  int alone = 0;  // steps taken one by one since several at once last failed
  double surprise = manner.surprise < 1 ? least_surprise : manner.surprise;
  while (layout_.peak_bytes() > limit_bytes) {
    if (layouts_ >= end) return false;
    std::vector<Candidate> ranked = candidates(limit_bytes, manner);
    std::erase_if(ranked, [&](const Candidate& one) { return refused.contains({one.gap, one.choice}); });
    if (ranked.empty()) return false;
    std::sort(ranked.begin(), ranked.end(), [](const Candidate& a, const Candidate& b) {
      return a.score != b.score ? a.score > b.score : std::pair(a.gap, a.choice) < std::pair(b.gap, b.choice);
    });
    if (together > 1) {
      const bool taken = step_together(ranked, limit_bytes, together, surprise, manner.careful);
      together = taken ? std::min(2 * together, most_together) : together / 2;
      if (together == 1) surprise = std::min(2 * surprise, manner.surprise);  // or many small steps would take for ever
    } else if (step_best(ranked, limit_bytes, manner, refused)) {
      refused.clear();
      if (most_together > 1 && ++alone == alone_for) {
        together = 2;
        alone = 0;
      }
    }
  }
  return true;
}

// Take the best of several tensors at once. False, and nothing taken, where that lowers nothing or waits too long.
bool Search::step_together(const std::vector<Candidate>& ranked, Bytes limit_bytes, int together, double surprise,
                           bool careful) {
  const Choices before = choices_;
  const Layout laid = layout_;
  const Standing was = standing(limit_bytes);
  std::set<Index> tensors;
  double foreseen = 0;
  Candidate last{};
  std::vector<const Candidate*> swaps;
  for (const Candidate& one : ranked) {
    if (tensors.size() >= at(together)) break;
    const bool new_swap = one.due_ns != 0;
    if (one.score <= 0 || tensors.contains(step_.gaps[at(one.gap)].tensor)) continue;
    if (new_swap && !tensors.empty() && careful && !fits_beside(one, swaps)) continue;
    tensors.insert(step_.gaps[at(one.gap)].tensor);
    if (new_swap) swaps.push_back(&one);
    choices_.choice[at(one.gap)] = one.choice;
    choices_.cover[at(one.gap)] = one.cover;
    foreseen += one.cost_ns;
    last = one;
  }
  const double allowed = 2 * foreseen + surprise * static_cast<double>(was.time);
  if (!tensors.empty() && apply(last)) {
    const Standing now = standing(limit_bytes);
    if (now.excess < was.excess && static_cast<double>(now.time - was.time) <= allowed) return true;
  }
  choices_ = before;
  layout_ = laid;
  return false;
}

// Whether the lanes have room for one more swap around the same peak beside others that are chosen with it: of
// those that leave later, or have to be back earlier, all that is copied must fit where it alone would.
bool Search::fits_beside(const Candidate& one, const std::vector<const Candidate*>& others) const {
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
  if (!fits(one, nullptr)) return false;
  return std::all_of(others.begin(), others.end(), [&](const Candidate* other) { return fits(*other, &one); });
}

// Lay out the best few and take the one that turns out best; what lowers nothing is refused from now on.
bool Search::step_best(const std::vector<Candidate>& ranked, Bytes limit_bytes, const Manner& manner,
                       std::set<std::pair<Index, Choice>>& refused) {
  const Choices before = choices_;
  const Layout laid = layout_;
  const Standing was = standing(limit_bytes);
  const Ns lanes = lane_ns(layout_);
  double best = 0;
  Choices best_choices;
  Layout best_layout(step_);
  for (std::size_t k = 0; k < std::min(ranked.size(), at(std::max(1, manner.tried))); ++k) {
    const Candidate& one = ranked[k];
    choices_ = before;
    const bool laid_out = apply(one);
    const double gain = laid_out ? static_cast<double>(was.excess - layout_.excess(limit_bytes)) : 0;
    if (gain <= 0) {
      refused.insert({one.gap, one.choice});
      continue;
    }
    const auto waits = static_cast<double>(std::max<Ns>(0, layout_.iteration_ns - was.time));
    const auto moved = static_cast<double>(std::max<Ns>(0, lane_ns(layout_) - lanes));
    const double score = gain / (waits + manner.lane_price * moved + step_price * static_cast<double>(was.time) + 1);
    if (score <= best) continue;
    best = score;
    best_choices = choices_;
    best_layout = layout_;
  }
  choices_ = best > 0 ? std::move(best_choices) : before;
  layout_ = best > 0 ? std::move(best_layout) : laid;
  return best > 0;
}

std::vector<Search::Candidate> Search::candidates(Bytes limit_bytes, const Manner& manner) const {
  const Layout& now = layout_;
  const Index ops = step_.operators();
  const Index count = now.length();
  const Ns period = now.end_ns.back();
  const Index peak = now.peak_position();
  const Index op = std::min(now.operator_at(peak), ops - 1);
  std::vector<Bytes> over(at(count) + 1, 0);
  std::vector<Index> many(at(count) + 1, 0);
  for (Index pos = 0; pos < count; ++pos) {
    const Bytes excess = std::max<Bytes>(0, now.load_bytes[at(pos)] - limit_bytes);
    over[at(pos) + 1] = over[at(pos)] + excess;
    many[at(pos) + 1] = many[at(pos)] + (excess > 0 ? 1 : 0);
  }
  const auto sum = [&](const auto& prefix, Index first, Index stop) {
    const auto upto = [&](Index pos) { return pos / count * prefix.back() + prefix[at(pos % count)]; };
    return stop > first ? upto(stop) - upto(first) : 0;
  };
  std::vector<std::pair<Ns, Ns>> outs;
  std::vector<std::pair<Ns, Ns>> ins;
  std::vector<Index> move_of(step_.gaps.size(), none);
  for (std::size_t k = 0; k < now.moves.size(); ++k) {
    const Move& one = now.moves[k];
    move_of[at(one.gap)] = static_cast<Index>(k);
    if (one.copies) outs.emplace_back(one.out_start_ns, one.out_start_ns + step_.arrays.out_ns[at(one.tensor)]);
    ins.emplace_back(one.in_start_ns, one.in_start_ns + step_.arrays.in_ns[at(one.tensor)]);
  }
  const Busy out_lane(std::move(outs), period);
  const Busy in_lane(std::move(ins), period);
  const auto when = [&](const std::vector<Ns>& axis, Index unrolled) {
    return axis[at(unrolled % count)] + unrolled / count * period;
  };
  std::vector<Candidate> found;
  const double least = step_price * static_cast<double>(period) + 1;
  for (Index number = 0; number < static_cast<Index>(step_.gaps.size()); ++number) {
    const Gap& gap = step_.gaps[at(number)];
    const Index inside = op > gap.after && op < gap.need ? op : op + ops > gap.after && op + ops < gap.need ? op + ops : none;
    const Bytes size = step_.arrays.size_bytes[at(gap.tensor)];
    if (choices_.choice[at(number)] == Choice::drop) {
      // Where making things again is itself the peak, one of them may be better swapped.
      if (gap.need != op || now.again[at(peak)] == 0) continue;
      const double waits = static_cast<double>(step_.arrays.out_ns[at(gap.tensor)] + step_.arrays.in_ns[at(gap.tensor)]);
      const double bytes = static_cast<double>(std::min<Bytes>(size, now.load_bytes[at(peak)] - limit_bytes));
      found.push_back({number, Choice::swap, {gap.after + 1, gap.need - 1}, bytes / (waits + least), waits});
      continue;
    }
    if (inside == none) continue;
    const Index turn = inside / ops * count;
    const Index first = now.position[at(gap.after)] + 1;
    const Index stop = now.block[at(gap.need % ops)] + gap.need / ops * count;
    const auto benefit = static_cast<double>(
        std::min<Bytes>(size * static_cast<Bytes>(sum(many, first, stop)), sum(over, first, stop)));
    const Ns out_ns = step_.arrays.out_ns[at(gap.tensor)];
    const Ns in_ns = step_.arrays.in_ns[at(gap.tensor)];
    if (manner.drops && step_.droppable(gap)) {
      const double cost = chain_ns(gap.tensor, gap.need, 0);
      if (cost < impossible_ns) found.push_back({number, Choice::drop, {}, benefit / (cost + least), cost});
    }
    Cover cover{inside, inside};
    if (choices_.choice[at(number)] == Choice::keep) {
      const Ns left = when(now.end_ns, first - 1);
      const Ns gone = when(now.boundary_ns, now.block[at(inside % ops)] + turn);
      const Ns here = when(now.end_ns, now.position[at(inside % ops)] + turn);
      const Ns due = when(now.begin_ns, stop);
      const Ns out_room = out_lane.free(left, gone);
      const Ns in_room = in_lane.free(here, due);
      const Ns stall = std::max<Ns>(0, out_ns - out_room) + std::max<Ns>(0, in_ns - in_room);
      const double cost = manner.swap_price * static_cast<double>(stall) +
                          manner.lane_price * static_cast<double>(out_ns + in_ns) + least;
      found.push_back(
          {number, Choice::swap, cover, benefit / cost, static_cast<double>(stall), left, due, out_room, in_room});
      continue;
    }
    const Index which = move_of[at(number)];
    if (which == none) continue;
    const Move& move = now.moves[at(which)];
    const Index unrolled = peak + turn;
    if (unrolled >= move.free && unrolled < move.back) continue;
    const Cover& known = choices_.cover[at(number)];
    if (known.lo != none) cover = {std::min(cover.lo, known.lo), std::max(cover.hi, known.hi)};
    const Ns late = unrolled < move.free
                        ? std::min(out_ns, when(now.boundary_ns, move.free) - when(now.boundary_ns, unrolled))
                        : std::min(in_ns, when(now.end_ns, unrolled) - when(now.boundary_ns, move.back));
    const double nearby = static_cast<double>(std::min<Bytes>(size, now.load_bytes[at(peak)] - limit_bytes));
    const auto waits = static_cast<double>(std::max<Ns>(0, late));
    found.push_back({number, Choice::swap, cover, nearby / (waits + least), waits});
  }
  return found;
}

// What making the tensor again before this operator takes, as things stand; a rough figure.
double Search::chain_ns(Index tensor, Index op, int depth) const {
  const Index maker = step_.first_writer[at(tensor)];
  if (maker == none || step_.arrays.repeatable[at(maker)] == 0 || depth > deepest_estimate) return impossible_ns;
  if (step_.writers[at(tensor)].size() != 1) return impossible_ns;
  double sum = static_cast<double>(step_.arrays.latency_ns[at(maker)]);
  for (Index number = step_.first_access(maker); number < step_.last_access(maker) && sum < impossible_ns; ++number) {
    const Access& source = step_.access(number);
    if (source.writes) continue;
    if (step_.written_between(source.tensor, maker, op)) return impossible_ns;
    if (step_.persistent(source.tensor)) continue;
    bool there = step_.last_user[at(source.tensor)] >= op;
    const auto [begin, end] = std::equal_range(step_.gaps.begin(), step_.gaps.end(), Gap{source.tensor, 0, 0},
                                               [](const Gap& a, const Gap& b) { return a.tensor < b.tensor; });
    for (auto gap = begin; gap != end && there; ++gap) {
      const auto which = static_cast<std::size_t>(gap - step_.gaps.begin());
      if (gap->after < op && op < gap->need && choices_.choice[which] == Choice::drop) there = false;
    }
    if (!there) sum += chain_ns(source.tensor, op, depth + 1);
  }
  return sum;
}

// --- taking back and trying again ----------------------------------------------------------------------------------

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
        chosen.emplace_back(static_cast<double>(step_.arrays.latency_ns[at(step_.first_writer[at(tensor)])]) / size, gap);
        break;
    }
  }
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  if (chosen.size() > at(most)) chosen.resize(at(most));
  for (const auto& [price, gap] : chosen) {
    const Choices before = choices_;
    const Layout laid = layout_;
    const bool good = apply({gap, Choice::keep, {}, 0, 0});
    if (good && layout_.peak_bytes() <= limit_bytes && layout_.iteration_ns <= laid.iteration_ns) continue;
    choices_ = before;
    layout_ = laid;
  }
}

int Search::improve(Bytes limit_bytes, const Manner& manner, Index most, std::uint64_t seed) {
  const Index end = layouts_ + most;
  Random random(seed);
  const auto ops = static_cast<std::uint64_t>(step_.operators());
  int better = 0;
  while (layouts_ < end) {
    const Choices before = choices_;
    const Layout laid = layout_;
    const auto width = static_cast<Index>(1 + ops / 24 + random.below(1 + ops / 4));
    const auto first = static_cast<Index>(random.below(ops));
    bool changed = false;
    ++layouts_;  // so that a round without anything to undo counts too
    for (std::size_t gap = 0; gap < step_.gaps.size(); ++gap) {
      if (choices_.choice[gap] == Choice::keep) continue;
      const Gap& one = step_.gaps[gap];
      const bool near = (one.after >= first && one.after < first + width) || (one.need >= first && one.need < first + width);
      if (!near || random.below(2) == 0) continue;
      choices_.choice[gap] = Choice::keep;
      choices_.cover[gap] = {};
      changed = true;
    }
    Manner other = manner;
    other.lane_price = lane_prices[random.below(std::size(lane_prices))];
    other.tried = 1 + static_cast<int>(random.below(4));
    const bool done = changed && settle() && lower(limit_bytes, other, end - layouts_) && settle();
    if (done && layout_.peak_bytes() <= limit_bytes && layout_.iteration_ns < laid.iteration_ns) {
      ++better;
      continue;
    }
    choices_ = before;
    layout_ = laid;
  }
  return better;
}

}  // namespace tensile::planner
