// Derives the choices of an existing plan from its order and moves, so that a search can continue from the plan.
#include <algorithm>
#include <utility>

#include "search.hpp"

namespace tensile::planner {

std::optional<Search::Standing> Search::adopt(const std::vector<Index>& order, std::vector<Move> moves) {
  if (!readable(order, moves)) return std::nullopt;
  std::optional<Choices> choices = read(order, moves);
  if (!choices) return std::nullopt;
  Layout held(step_, bench_);
  const bool laid = held.lay(*choices, 0, layout_);
  if (!laid || held.order().op_at != order || !held.hold(moves)) return std::nullopt;
  choices_ = std::move(*choices);
  settle();
  return Standing{held.peak_bytes(), held.iteration_ns};
}

// Return whether these can be an order and its moves: the operators come in turn, some repeated, and all numbers are
// within their ranges.
bool Search::readable(const std::vector<Index>& order, const std::vector<Move>& moves) const {
  Index next = 0;
  for (const Index op : order) {
    if (op < 0 || op > next || op >= step_.operators()) return false;
    if (op == next) ++next;
  }
  const auto count = static_cast<Index>(order.size());
  const auto within = [&](Index position) { return position >= 0 && position < count; };
  return next == step_.operators() && std::all_of(moves.begin(), moves.end(), [&](const Move& move) {
           return move.tensor >= 0 && move.tensor < step_.tensors() && within(move.after) && within(move.free) &&
                  within(move.back) && within(move.need);
         });
}

// Derive the choices. A gap is dropped if its tensor is recomputed within it, and swapped if a move lies in it. Fills
// in the remaining fields of the moves.
std::optional<Choices> Search::read(const std::vector<Index>& order, std::vector<Move>& moves) const {
  Choices choices = nothing();
  std::vector<Index> open(at(step_.tensors()), none);      // by tensor, the gap after its latest captured access
  std::vector<std::uint8_t> made(at(step_.tensors()), 0);  // by tensor, whether it was recomputed since that access
  Places places{static_cast<Index>(order.size()), {}, {}};
  Index start = 0;
  for (Index pos = 0; pos < places.count; ++pos) {
    const Index op = order[at(pos)];
    const bool again = op < static_cast<Index>(places.position.size());
    for (Index number = step_.first_access(op); number < step_.last_access(op); ++number) {
      const Access& access = step_.access(number);
      if (again) {
        if (access.writes) made[at(access.tensor)] = 1;
        continue;
      }
      const Index gap = open[at(access.tensor)];
      if (gap != none && made[at(access.tensor)] != 0) {
        if (!step_.droppable(step_.gaps[at(gap)])) return std::nullopt;
        choices.choice[at(gap)] = Choice::drop;
      }
      made[at(access.tensor)] = 0;
      open[at(access.tensor)] = step_.gap_of_access[at(number)];
    }
    if (again) continue;
    places.block.push_back(start);
    places.position.push_back(pos);
    start = pos + 1;
  }
  if (!std::all_of(moves.begin(), moves.end(), [&](Move& move) { return read_move(places, move, choices); }))
    return std::nullopt;
  std::sort(moves.begin(), moves.end(),
            [](const Move& a, const Move& b) { return std::pair(a.gap, a.after) < std::pair(b.gap, b.after); });
  return choices;
}

// Find the gap that contains the move and the operators at which the tensor is away, and make the move's boundaries
// count on from its start across iterations.
bool Search::read_move(const Places& places, Move& move, Choices& choices) const {
  for (Index* where : {&move.free, &move.back, &move.need})
    if (*where <= move.after) *where += places.count;
  if (move.free >= move.back || move.back > move.need) return false;
  const auto begin = step_.gaps.begin() + step_.first_gap[at(move.tensor)];
  const auto end = step_.gaps.begin() + step_.first_gap[at(move.tensor) + 1];
  const auto next = std::upper_bound(
      begin, end, move.after, [&](Index after, const Gap& gap) { return after < places.position[at(gap.after)]; });
  if (next == begin) return false;
  move.gap = static_cast<Index>(next - step_.gaps.begin()) - 1;
  const Gap& gap = step_.gaps[at(move.gap)];
  const auto first_from = [&](const std::vector<Index>& where, Index pos) {
    const Index turn = pos / places.count;
    const auto there = std::lower_bound(where.begin(), where.end(), pos - turn * places.count);
    return static_cast<Index>(there - where.begin()) + turn * step_.operators();
  };
  const Index lo = first_from(places.block, move.free + 1) - 1;
  const Index hi = first_from(places.position, move.back - 1);
  Cover& cover = choices.cover[at(move.gap)];
  const Index first = std::clamp(lo, gap.after + 1, gap.need - 1);
  cover = cover.with(first).with(std::clamp(hi, first, gap.need - 1));
  choices.choice[at(move.gap)] = Choice::swap;
  return true;
}

}  // namespace tensile::planner
