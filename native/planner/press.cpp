// The last way down to a limit: where the load is over it, the largest tensors that need not be there have to be
// away.
//
// The greedy search stops where no single step lowers the load by more than it raises it elsewhere: copies that
// nothing demands move when others do. Here every round demands more, and takes no demand back, so it ends; at the
// latest with everything away at every operator, which is the least that swapping can do.
#include <algorithm>
#include <utility>
#include <vector>

#include "search.hpp"

namespace tensile::planner {
namespace {

constexpr int most_positions = 16;  // of one round: demands at one move copies at others

}  // namespace

bool Search::press(Bytes limit_bytes, Index most) {
  const Index end = layouts_ + most;
  while (layout_.peak_bytes() > limit_bytes)
    if (layouts_ >= end || !demand_more(limit_bytes) || !settle()) return false;
  return true;
}

// Demand that enough is away at some positions over the limit. False where nothing more can be away at any of them.
bool Search::demand_more(Bytes limit_bytes) {
  int positions = 0;
  for (Index position = 0; position < layout_.length() && positions < most_positions; ++position)
    if (layout_.load_bytes[at(position)] > limit_bytes && demand_at(position, limit_bytes)) ++positions;
  return positions > 0;
}

bool Search::demand_at(Index position, Bytes limit_bytes) {
  const Index ops = step_.operators();
  const Index op = std::min(layout_.order().operator_at(position), ops - 1);
  std::vector<std::pair<Bytes, Undo>> there;
  for (Index number = 0; number < static_cast<Index>(step_.gaps.size()); ++number) {
    const Gap& gap = step_.gaps[at(number)];
    const Index inside = op > gap.after ? op : op + ops;
    if (inside <= gap.after || inside >= gap.need || choices_.choice[at(number)] == Choice::drop) continue;
    if (layout_.away(number, inside >= ops ? position + layout_.length() : position)) continue;
    const bool moves = choices_.choice[at(number)] == Choice::swap;
    const Cover known = moves ? choices_.cover[at(number)] : Cover{};
    const Cover cover = known.with(inside);
    if (cover == known) continue;  // as far away as it can be
    there.push_back({step_.arrays.size_bytes[at(gap.tensor)], {number, Choice::swap, cover}});
  }
  std::stable_sort(there.begin(), there.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  Bytes over = layout_.load_bytes[at(position)] - limit_bytes;
  for (const auto& [size, one] : there) {
    if (over <= 0) break;
    choices_.choice[at(one.gap)] = one.choice;
    choices_.cover[at(one.gap)] = one.cover;
    over -= size;
  }
  return !there.empty();
}

}  // namespace tensile::planner
