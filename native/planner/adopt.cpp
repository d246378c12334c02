// Reads the choices of a search off a plan that was made before, so that it can be gone on from.
#include <algorithm>
#include <utility>

#include "search.hpp"

namespace tensile::planner {

std::optional<Search::Standing> Search::adopt(const std::vector<Index>& order, std::vector<Move> moves) {
  if (!readable(order, moves)) return std::nullopt;
  std::optional<Choices> found = read(order, moves);
  if (!found) return std::nullopt;
  Layout held(step_, bench_);
  const bool laid = held.lay(*found, 0, layout_);
  if (!laid || held.order().op_at != order || !held.hold(moves)) return std::nullopt;
  choices_ = std::move(*found);
  settle();
  return Standing{held.peak_bytes(), held.iteration_ns};
}

// Whether this could be an order and moves at all: every operator in turn, some again, and boundaries in order once
// they are counted on from where the move starts.
bool Search::readable(const std::vector<Index>& order, const std::vector<Move>& moves) const {
  Index next = 0;
  for (const Index op : order) {
    if (op < 0 || op > next || op >= step_.operators()) return false;
    if (op == next) ++next;
  }
  const auto count = static_cast<Index>(order.size());
  const auto within = [&](Index position) { return position >= 0 && position < count; };
  return next == step_.operators() && std::all_of(moves.begin(), moves.end(), [&](const Move& one) {
           return one.tensor >= 0 && one.tensor < step_.tensors() && within(one.after) && within(one.free) &&
                  within(one.back) && within(one.need);
         });
}

// A gap is dropped where its tensor was made again within it, and swapped where a move lies in it. Completes the
// moves.
std::optional<Choices> Search::read(const std::vector<Index>& order, std::vector<Move>& moves) const {
  const auto count = static_cast<Index>(order.size());
  Choices found = nothing();
  std::vector<Index> open(at(step_.tensors()), none);  // by tensor, the gap after its latest captured access
  std::vector<Index> block;
  std::vector<Index> position;
  std::vector<std::uint8_t> made(at(step_.tensors()), 0);  // again, since that access
  Index start = 0;
  for (Index pos = 0; pos < count; ++pos) {
    const Index op = order[at(pos)];
    const bool again = op < static_cast<Index>(position.size());
    for (Index number = step_.first_access(op); number < step_.last_access(op); ++number) {
      const Access& one = step_.access(number);
      if (again) {
        if (one.writes) made[at(one.tensor)] = 1;
        continue;
      }
      const Index gap = open[at(one.tensor)];
      if (gap != none && made[at(one.tensor)] != 0) {
        if (!step_.droppable(step_.gaps[at(gap)])) return std::nullopt;
        found.choice[at(gap)] = Choice::drop;
      }
      made[at(one.tensor)] = 0;
      open[at(one.tensor)] = step_.gap_of_access[at(number)];
    }
    if (again) continue;
    block.push_back(start);
    position.push_back(pos);
    start = pos + 1;
  }
  const auto unrolled = [&](Index where, Index after) { return where > after ? where : where + count; };
  for (Move& one : moves) {
    one.free = unrolled(one.free, one.after);
    one.back = unrolled(one.back, one.after);
    one.need = unrolled(one.need, one.after);
    if (one.free >= one.back || one.back > one.need) return std::nullopt;
    const auto begin = step_.gaps.begin() + step_.first_gap[at(one.tensor)];
    const auto end = step_.gaps.begin() + step_.first_gap[at(one.tensor) + 1];
    const auto next = std::upper_bound(begin, end, one.after,
                                       [&](Index after, const Gap& gap) { return after < position[at(gap.after)]; });
    if (next == begin) return std::nullopt;
    one.gap = static_cast<Index>(next - step_.gaps.begin()) - 1;
    const Gap& gap = step_.gaps[at(one.gap)];
    const Index ops = step_.operators();
    const auto op_at = [&](const std::vector<Index>& where, Index pos) {  // the first that is there or later
      const Index turn = pos / count;
      const auto there = std::lower_bound(where.begin(), where.end(), pos - turn * count);
      return static_cast<Index>(there - where.begin()) + turn * ops;
    };
    const Index lo = op_at(block, one.free + 1) - 1;
    const Index hi = op_at(position, one.back - 1);
    found.choice[at(one.gap)] = Choice::swap;
    found.cover[at(one.gap)].lo = std::clamp(lo, gap.after + 1, gap.need - 1);
    found.cover[at(one.gap)].hi = std::clamp(hi, found.cover[at(one.gap)].lo, gap.need - 1);
  }
  std::sort(moves.begin(), moves.end(), [](const Move& a, const Move& b) { return a.gap < b.gap; });
  return found;
}

}  // namespace tensile::planner
