// Lays swaps into a given amount of memory: a tensor stays away as long as it has to, and no longer.
//
// Without that, a swap leaves as early and returns as late as the lanes allow, and is over a limit where that is too
// late: covers then say where it has to be away, one operator after the other. Here the memory itself says so. All
// swaps start out as away for as long as they can be, which is the least load that they lead to; what that leaves is
// given out again. First the short parts of gaps in which something is made again stay, which saves a copy. Then,
// in the order in which they are needed, tensors return where the lanes call for it, or from where on there is room;
// in the order in which they leave they stay until they are copied, or while there is room. What is still left lets
// tensors return ahead of time: as early as on the axis without any waits that timing begins with, since full lanes
// are late for all of them.
// The idea of the last step is AutoSwap's (Zhang et al., section IV-E), which takes it first.
#include <algorithm>
#include <utility>
#include <vector>

#include "cursor.hpp"
#include "layout.hpp"

namespace tensile::planner {

// Count what everything that is swapped leaves while it is away. False where that is less than nothing.
bool Layout::make_room(Bytes room_bytes) {
  std::vector<Bytes>& room = bench_->room;
  sum_up(room, [](const Move& one) { return std::pair(one.after + 1, one.need); });
  for (Bytes& one : room) one = room_bytes - one;
  if (*std::min_element(room.begin(), room.end()) < 0) return false;
  bench_->left = room;
  stay_between();
  room = bench_->left;
  return true;
}

std::vector<Bytes> Layout::least_load() const {
  std::vector<Bytes> found;
  sum_up(found, [](const Move& one) { return std::pair(one.after + 1, one.need); });
  return found;
}

// Of a gap with several parts only the longest needs to be used: the others stay where there is room, shortest first.
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
    if (Move& one = moves[at(k)]; claim(one, one.after + 1, one.need)) one.gap = none;
  std::erase_if(moves, [](const Move& one) { return one.gap == none; });
}

// Give the move's tensor all that it takes between two positions. False, and nothing given, where that is not left.
bool Layout::claim(const Move& one, Index first, Index stop) {
  const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
  for (Index pos = first; pos < stop; ++pos)
    if (bench_->left[at(within(pos))] < size) return false;
  for (Index pos = first; pos < stop; ++pos) bench_->left[at(within(pos))] -= size;
  return true;
}

// Give out what is left, to what was placed by the lanes alone.
void Layout::fill() {
  bench_->left = bench_->room;
  for (Move& one : moves) one.wanted = std::exchange(one.back, one.need);
  return_in_turn();
  for (const Index k : departures) {
    Move& one = moves[at(k)];
    one.free = stay(one, std::min(one.free, one.back - 1));
  }
  for (Move& one : moves) one.wanted = std::max(one.early, one.free + 1);
  return_in_turn();
}

// Up to which position, or this one, there is room for the tensor from when it could leave on; takes it.
Index Layout::stay(const Move& one, Index latest) {
  const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
  Index pos = one.after + 1;
  while (pos < latest) {
    const Index turn = pos < length() ? 0 : length();
    const Index stop = turn == 0 ? std::min(latest, length()) : latest;
    for (Bytes* left = bench_->left.data() + pos - turn; pos < stop && *left >= size; ++left, ++pos) *left -= size;
    if (pos < stop) break;
  }
  return pos;
}

// From which position on, or this one, there is room for the tensor until when it is back now; takes it.
Index Layout::return_from(const Move& one, Index earliest) {
  const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
  Index pos = one.back;
  while (pos > earliest) {
    const Index turn = pos > length() ? length() : 0;
    const Index stop = std::max(earliest, turn);
    for (Bytes* left = bench_->left.data() + pos - turn; pos > stop && *(left - 1) >= size; --left, --pos)
      *(left - 1) -= size;
    if (pos > stop) break;
  }
  return pos;
}

// Let each tensor return from where it is wanted on, as far as there is room, and as the lane has come to it.
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
    Move& one = moves[at(item->move)];
    const Index turn = one.need < count ? 0 : count;  // the iteration in which it is needed begins there
    const Index earliest = std::max(one.wanted, boundary.first_from(lane) - 1 + turn);
    one.back = return_from(one, earliest);
    const Index where = one.back - turn;
    const Ns from = where < 0       ? boundary_ns[at(where + count)] - period
                    : where < count ? boundary_ns[at(where)]
                                    : period;
    lane = std::max(lane, from) + item->duration;
  }
}

}  // namespace tensile::planner
