// Moves copies in time, within the memory that a plan leaves unused: where the iteration waits for a copy, a tensor
// comes back earlier than its plan says, or leaves the device later.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "search.hpp"

namespace tensile::planner {
namespace {

std::size_t at(Index index) { return static_cast<std::size_t>(index); }

// Moves the operator at which a tensor gives its memory back to a later one, up to `distance` operators after the
// last use, while there is room.
void leave_later(Move& move, Bytes size, std::vector<Bytes>& room, Index distance) {
  const auto count = static_cast<Index>(room.size());
  const Index latest = std::min(move.back - 1, move.after + distance);
  while (move.free < latest && room[at(move.free % count)] >= size) room[at(move.free++ % count)] -= size;
}

// Moves a tensor's return to an earlier operator, and returns that operator. The new operator is not before
// `previous`, where the tensor returns that is needed next before this tensor. A tensor that is away when the
// iteration begins still returns after that: its host copy is valid at the start of an iteration only if the tensor
// is away there.
Index return_earlier(Move& move, Bytes size, std::vector<Bytes>& room, Index distance, Index previous) {
  const auto count = static_cast<Index>(room.size());
  const Index begin = move.need / count * count;  // the start of the iteration in which the tensor is needed
  Index earliest = std::max({move.free + 1, move.need - distance, previous + begin});
  if (move.back > count) earliest = std::max(earliest, count + 1);
  while (move.back > earliest && room[at((move.back - 1) % count)] >= size) room[at(--move.back % count)] -= size;
  return std::max(previous, move.back - begin);
}

}  // namespace

bool Search::advance(const std::vector<Index>& distances, std::vector<Ns> out_ns, std::vector<Ns> in_ns) {
  if (out_ns.size() != step_.arrays.out_ns.size() || in_ns.size() != step_.arrays.in_ns.size())
    throw std::invalid_argument("search: new times do not fit the step");
  std::swap(step_.arrays.out_ns, out_ns);
  std::swap(step_.arrays.in_ns, in_ns);
  const bool better = advance_all(distances);
  std::swap(step_.arrays.out_ns, out_ns);
  std::swap(step_.arrays.in_ns, in_ns);
  return better;
}

bool Search::advance_all(const std::vector<Index>& distances) {
  Layout best = layout_;
  if (!best.hold(layout_.moves) || best.stall_ns == 0) return false;
  bool better = false;
  for (const Index distance : distances) {
    ++layouts_;
    trial_ = layout_;
    if (!trial_.hold(advanced(distance)) || trial_.iteration_ns >= best.iteration_ns) continue;
    std::swap(best, trial_);
    better = true;
  }
  if (better) accept(best);
  return better;
}

// Returns the moves, changed so that a tensor returns up to `distance` operators before it is needed, and leaves up
// to as many operators after its last use.
std::vector<Move> Search::advanced(Index distance) const {
  std::vector<Move> moves = layout_.moves;
  const Bytes most = layout_.peak_bytes();
  std::vector<Bytes> room = layout_.load_bytes;
  for (Bytes& bytes : room) bytes = most - bytes;
  const auto size = [&](const Move& move) { return step_.arrays.size_bytes[at(move.tensor)]; };
  for (const Index k : layout_.departures)
    if (Move& move = moves[at(k)]; move.copies) leave_later(move, size(move), room, distance);
  std::vector<Index> order(moves.size());
  std::iota(order.begin(), order.end(), 0);
  const Index count = layout_.length();
  const auto due = [&](Index k) { return std::pair(moves[at(k)].need % count, moves[at(k)].tensor); };
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return due(a) < due(b); });
  Index previous = -count;
  for (const Index k : order) previous = return_earlier(moves[at(k)], size(moves[at(k)]), room, distance, previous);
  return moves;
}

}  // namespace tensile::planner
