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

// Return the gaps whose choice could change to `other`, the largest tensors first.
std::vector<Index> Search::exchangeable(Choice other) const {
  std::vector<Index> found;
  for (Index gap = 0; gap < static_cast<Index>(step_.gaps.size()); ++gap) {
    const Choice now = choices_.choice[at(gap)];
    if (now == Choice::keep || now == other) continue;
    if (other != Choice::drop || step_.droppable(step_.gaps[at(gap)])) found.push_back(gap);
  }
  const auto size = [&](Index gap) { return step_.arrays.size_bytes[at(step_.gaps[at(gap)].tensor)]; };
  std::stable_sort(found.begin(), found.end(), [&](Index a, Index b) { return size(a) > size(b); });
  return found;
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
    const auto standing = [&](const Layout& one) { return std::pair(one.iteration_ns, lane_ns(one)); };
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
