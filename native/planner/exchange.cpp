// The exchange of choices: tries another choice for each chosen gap, within the present memory.
//
// The choices that lead the greedy search to a limit are seldom the fastest at that limit: the search swapped while
// the lanes were free, and recomputing tensors may take less time than the copies that now fill the lanes. At low
// limits, which only swapping everything reaches, this may hold for nearly all tensors. Changing them one at a time
// would take many steps, so as many gaps as possible change together: the largest tensors first, and half as many if
// the result is not faster.
#include <algorithm>
#include <utility>
#include <vector>

#include "search.hpp"

namespace tensile::planner {
namespace {

constexpr std::size_t most_together = 64;
constexpr Bytes least_share = 4096;        // tensors below this share of the peak are not swapped to fill a lane
constexpr std::size_t least_together = 4;  // fewer gaps are not worth a layout

}  // namespace

bool Search::fill(Bytes room_bytes) {
  Choices filled = choices_;
  filled.room_bytes = room_bytes;
  filled.cover.assign(filled.cover.size(), {});
  std::swap(choices_, filled);
  if (settle()) return true;
  std::swap(choices_, filled);
  return false;
}

void Search::exchange(bool drops, Index most) {
  const Index end = layouts_ + most;
  bool better = true;
  while (better && layouts_ < end) {
    better = false;
    for (const Choice other : {Choice::drop, Choice::keep, Choice::swap})
      if (drops || other != Choice::drop) better |= exchange_all(exchangeable(other), other, end);
  }
}

bool Search::swap_idle(Index most) {
  if (!choices_.room_bytes || recomputed().empty()) return false;
  const Index end = layouts_ + most;
  const Choices before = choices_;
  const Layout start = layout_;
  while (layouts_ < end && swap_free(kept_over_peak(), end) && exchange_all(recomputed(), Choice::keep, end)) {
  }
  if (std::pair(layout_.iteration_ns, lane_ns(layout_)) < std::pair(start.iteration_ns, lane_ns(start))) return true;
  choices_ = before;
  layout_ = start;
  return false;
}

// Swap as many of these gaps as possible without a slower iteration: groups of them, and half as many if the
// iteration is slower. Returns whether any choice changed.
bool Search::swap_free(const std::vector<Index>& gaps, Index end) {
  bool changed = false;
  std::vector<std::pair<std::size_t, std::size_t>> groups;
  for (std::size_t first = (gaps.size() + most_together - 1) / most_together * most_together; first > 0;) {
    first -= most_together;
    groups.emplace_back(first, std::min(gaps.size(), first + most_together));
  }
  while (!groups.empty() && layouts_ < end) {
    const auto [first, stop] = groups.back();
    groups.pop_back();
    for (std::size_t k = first; k < stop; ++k) put(gaps[k], Choice::swap, {});
    if (try_out() && trial_.iteration_ns <= layout_.iteration_ns) {
      accept(trial_);
      changed = true;
      continue;
    }
    take_back();
    if (stop - first <= least_together) continue;
    const std::size_t middle = (first + stop) / 2;
    groups.emplace_back(middle, stop);
    groups.emplace_back(first, middle);
  }
  return changed;
}

// Return the gaps whose tensors are kept while the load is highest, the longest gaps first.
std::vector<Index> Search::kept_over_peak() const {
  const auto& load_bytes = layout_.load_bytes;
  const auto peak = std::max_element(load_bytes.begin(), load_bytes.end()) - load_bytes.begin();
  const Index op = layout_.order().op_at[static_cast<std::size_t>(peak)];
  const auto count = static_cast<Index>(step_.operators());
  std::vector<Index> gaps;
  for (Index number = 0; number < static_cast<Index>(step_.gaps.size()); ++number) {
    const Gap& gap = step_.gaps[at(number)];
    const bool over = (gap.after < op && op < gap.need) || op + count < gap.need;
    const bool large =
        step_.arrays.size_bytes[at(gap.tensor)] > load_bytes[static_cast<std::size_t>(peak)] / least_share;
    if (over && large && choices_.choice[at(number)] == Choice::keep) gaps.push_back(number);
  }
  const auto length = [&](Index number) { return step_.gaps[at(number)].need - step_.gaps[at(number)].after; };
  std::stable_sort(gaps.begin(), gaps.end(), [&](Index a, Index b) { return length(a) > length(b); });
  return gaps;
}

// Return the gaps whose tensors are recomputed, those whose recomputation takes longest first.
std::vector<Index> Search::recomputed() const {
  std::vector<Index> gaps;
  for (Index gap = 0; gap < static_cast<Index>(step_.gaps.size()); ++gap)
    if (choices_.choice[at(gap)] == Choice::drop) gaps.push_back(gap);
  const auto duration = [&](Index gap) {
    const Index maker = step_.first_writer[at(step_.gaps[at(gap)].tensor)];
    return maker == none ? Ns{0} : step_.arrays.latency_ns[at(maker)];
  };
  std::stable_sort(gaps.begin(), gaps.end(), [&](Index a, Index b) { return duration(a) > duration(b); });
  return gaps;
}

// Return the gaps whose choice could change to `other`, the largest tensors first.
std::vector<Index> Search::exchangeable(Choice other) const {
  std::vector<Index> gaps;
  for (Index gap = 0; gap < static_cast<Index>(step_.gaps.size()); ++gap) {
    const Choice now = choices_.choice[at(gap)];
    if (now == Choice::keep || now == other) continue;
    if (other != Choice::drop || step_.droppable(step_.gaps[at(gap)])) gaps.push_back(gap);
  }
  const auto size = [&](Index gap) { return step_.arrays.size_bytes[at(step_.gaps[at(gap)].tensor)]; };
  std::stable_sort(gaps.begin(), gaps.end(), [&](Index a, Index b) { return size(a) > size(b); });
  return gaps;
}

// Change the choice of these gaps to `other` where that makes the iteration faster, or keeps its time with less to
// copy. Returns whether any choice changed.
bool Search::exchange_all(const std::vector<Index>& gaps, Choice other, Index end) {
  bool better = false;
  std::vector<std::pair<std::size_t, std::size_t>> groups;  // a stack of ranges of `gaps`: the next group is last
  for (std::size_t first = gaps.size() / most_together * most_together + most_together; first > 0;) {
    first -= most_together;
    if (first < gaps.size()) groups.emplace_back(first, std::min(gaps.size(), first + most_together));
  }
  while (!groups.empty() && layouts_ < end) {
    const auto [first, stop] = groups.back();
    groups.pop_back();
    for (std::size_t k = first; k < stop; ++k) put(gaps[k], other, {});
    const auto standing = [&](const Layout& layout) { return std::pair(layout.iteration_ns, lane_ns(layout)); };
    if (try_out() && standing(trial_) < standing(layout_)) {
      accept(trial_);
      better = true;
      continue;
    }
    take_back();
    if (stop - first == 1) continue;
    const std::size_t middle = (first + stop) / 2;
    groups.emplace_back(middle, stop);
    groups.emplace_back(first, middle);
  }
  return better;
}

}  // namespace tensile::planner
