// Lays swaps into a given amount of memory: a tensor is away for as long as the memory requires, and no longer.
//
// Without a given amount of memory, a swap leaves as early and returns as late as the lanes allow. If the load is
// then over a limit, covers must demand, operator by operator, where the tensor has to be away. Here the memory
// decides.
//
// At first all swapped tensors are away for as long as possible, which gives the least load. The memory that remains
// free is then assigned in four steps:
//   1. Tensors stay during the short parts of gaps that are divided by recomputations, which saves a copy.
//   2. In the order in which they are needed, tensors return when the lanes require it, or as soon after that as
//      there is room.
//   3. In the order in which they leave, tensors stay until they are copied, or while there is room.
//   4. With the memory still left, tensors return ahead of time: as early as on the axis without waits with which
//      timing begins, because full lanes delay all of them.
// The idea of the last step is from AutoSwap (Zhang et al., section IV-E), which does it first.
#include <algorithm>
#include <utility>
#include <vector>

#include "cursor.hpp"
#include "layout.hpp"

namespace tensile::planner {

// Compute the free memory by position while all swapped tensors are away. False if it is negative anywhere.
bool Layout::make_room(Bytes room_bytes) {
  std::vector<Bytes>& room = bench_->room;
  sum_up(room, [](const Move& move) { return std::pair(move.after + 1, move.need); });
  for (Bytes& bytes : room) bytes = room_bytes - bytes;
  if (*std::min_element(room.begin(), room.end()) < 0) return false;
  bench_->left = room;
  stay_between();
  room = bench_->left;
  return true;
}

std::vector<Bytes> Layout::least_load() const {
  std::vector<Bytes> load;
  sum_up(load, [](const Move& move) { return std::pair(move.after + 1, move.need); });
  return load;
}

// Let tensors stay where a gap has several parts: only the longest part needs a swap. In the other parts the tensor
// stays if there is room, the shortest parts first.
void Layout::stay_between() {
  std::vector<std::pair<Index, Index>> others;  // length and move
  for (std::size_t k = 0; k < moves.size();) {
    std::size_t stop = k + 1;
    while (stop < moves.size() && moves[stop].gap == moves[k].gap) ++stop;
    const auto begin = moves.begin() + static_cast<std::ptrdiff_t>(k);
    const auto longest = std::max_element(begin, moves.begin() + static_cast<std::ptrdiff_t>(stop), shorter<Move>);
    for (; k < stop; ++k)
      if (&moves[k] != &*longest) others.emplace_back(moves[k].need - moves[k].after, static_cast<Index>(k));
  }
  std::sort(others.begin(), others.end());
  for (const auto& [length, k] : others)
    if (Move& move = moves[at(k)]; claim(move, move.after + 1, move.need)) move.gap = none;
  std::erase_if(moves, [](const Move& move) { return move.gap == none; });
}

// Assign memory to the move's tensor at all positions between two. False, without any change, if not enough is left.
bool Layout::claim(const Move& move, Index first, Index stop) {
  const Bytes size = step_->arrays.size_bytes[at(move.tensor)];
  for (Index pos = first; pos < stop; ++pos)
    if (bench_->left[at(within(pos))] < size) return false;
  for (Index pos = first; pos < stop; ++pos) bench_->left[at(within(pos))] -= size;
  return true;
}

// Assign the free memory to the moves, whose boundaries the lanes alone have determined so far.
void Layout::fill() {
  bench_->left = bench_->room;
  for (Move& move : moves) move.wanted = std::exchange(move.back, move.need);
  return_in_turn();
  for (const Index k : departures) {
    Move& move = moves[at(k)];
    move.free = stay(move, std::min(move.free, move.back - 1));
  }
  for (Move& move : moves) move.wanted = std::max(move.early, move.free + 1);
  return_in_turn();
}

// Return the position up to which there is room for the tensor after its last use, at most `latest`, and assign the
// memory.
Index Layout::stay(const Move& move, Index latest) {
  const Bytes size = step_->arrays.size_bytes[at(move.tensor)];
  Index pos = move.after + 1;
  while (pos < latest) {
    const Index turn = pos < length() ? 0 : length();
    const Index stop = turn == 0 ? std::min(latest, length()) : latest;
    for (Bytes* left = bench_->left.data() + pos - turn; pos < stop && *left >= size; ++left, ++pos) *left -= size;
    if (pos < stop) break;
  }
  return pos;
}

// Return the position from which on there is room for the tensor until its present return, at least `earliest`, and
// assign the memory.
Index Layout::return_from(const Move& move, Index earliest) {
  const Bytes size = step_->arrays.size_bytes[at(move.tensor)];
  Index pos = move.back;
  while (pos > earliest) {
    const Index turn = pos > length() ? length() : 0;
    const Index stop = std::max(earliest, turn);
    for (Bytes* left = bench_->left.data() + pos - turn; pos > stop && *(left - 1) >= size; --left, --pos)
      *(left - 1) -= size;
    if (pos > stop) break;
  }
  return pos;
}

// Let each tensor return at its `wanted` position or later, as the memory and the order of copies on the lane allow.
void Layout::return_in_turn() {
  const Index count = length();
  const Ns period = end_ns.back();
  Cursor boundary(boundary_ns, period);
  Ns lane = -period;
  for (auto item = bench_->backs.rbegin(); item != bench_->backs.rend(); ++item) {
    if (item->move == none) {
      lane = std::max(lane, end_ns[at(item->where)]);
      continue;
    }
    Move& move = moves[at(item->move)];
    const Index turn = move.need < count ? 0 : count;  // the start of the iteration in which the tensor is needed
    const Index earliest = std::max(move.wanted, boundary.first_from(lane) - 1 + turn);
    move.back = return_from(move, earliest);
    const Index where = move.back - turn;
    const Ns from = where < 0       ? boundary_ns[at(where + count)] - period
                    : where < count ? boundary_ns[at(where)]
                                    : period;
    lane = std::max(lane, from) + item->duration;
  }
}

}  // namespace tensile::planner
