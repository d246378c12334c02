// The last resort to reach a limit: where the load is over the limit, the largest tensors that are not needed must be
// away.
//
// The greedy search stops when no single step lowers the load by more than the step raises it elsewhere, because
// copies without a demand shift when others change. Here every round adds demands and removes none, so the search
// ends, at the latest when every tensor is away at every operator that does not use it. That is the least memory that
// swapping can reach.
#include <algorithm>
#include <utility>
#include <vector>

#include "search.hpp"

namespace tensile::planner {
namespace {

constexpr int most_positions = 16;  // per round; few, because demands at one position shift copies at others

}  // namespace

bool Search::press(Bytes limit_bytes, Index most) {
  const Index end = layouts_ + most;
  while (layout_.peak_bytes() > limit_bytes)
    if (layouts_ >= end || !demand_more(limit_bytes) || !settle()) return false;
  return true;
}

// Demand that enough tensors are away at some positions over the limit. False if no further tensor can be away at any
// of them.
bool Search::demand_more(Bytes limit_bytes) {
  int positions = 0;
  for (Index position = 0; position < layout_.length() && positions < most_positions; ++position)
    if (layout_.load_bytes[at(position)] > limit_bytes && demand_at(position, limit_bytes)) ++positions;
  return positions > 0;
}

bool Search::demand_at(Index position, Bytes limit_bytes) {
  const Index ops = step_.operators();
  const Index op = std::min(layout_.order().captured_operator(position), ops - 1);
  std::vector<std::pair<Bytes, Undo>> there;
  for (Index number = 0; number < static_cast<Index>(step_.gaps.size()); ++number) {
    const Gap& gap = step_.gaps[at(number)];
    const Index inside = op > gap.after ? op : op + ops;
    if (inside <= gap.after || inside >= gap.need || choices_.choice[at(number)] == Choice::drop) continue;
    if (layout_.away(number, inside >= ops ? position + layout_.length() : position)) continue;
    const bool moves = choices_.choice[at(number)] == Choice::swap;
    const Cover known = moves ? choices_.cover[at(number)] : Cover{};
    const Cover cover = known.with(inside);
    if (cover == known) continue;  // the tensor must already be away here
    there.push_back({step_.arrays.size_bytes[at(gap.tensor)], {number, Choice::swap, cover}});
  }
  std::stable_sort(there.begin(), there.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  Bytes over = layout_.load_bytes[at(position)] - limit_bytes;
  for (const auto& [size, demanded] : there) {
    if (over <= 0) break;
    choices_.choice[at(demanded.gap)] = demanded.choice;
    choices_.cover[at(demanded.gap)] = demanded.cover;
    over -= size;
  }
  return !there.empty();
}

}  // namespace tensile::planner
