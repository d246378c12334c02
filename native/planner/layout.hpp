// The layout of a set of choices: the order of execution, the residency of every tensor, the use of the copy lanes,
// and the time of an iteration.
//
// Copies to the host start as early, and copies back as late, as the lanes allow on the time axis. The axis includes
// the waits of the previous timing of the same choices. If the choices have `room_bytes`, that memory also decides
// when tensors leave and return (room.cpp). A search lays out thousands of sets of choices, so a layout reuses its
// memory, and takes over from an earlier layout the parts that do not depend on swaps.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "order.hpp"
#include "step.hpp"

namespace tensile::planner {

// One swap, in positions of the order of execution. Positions of the next iteration count on from those of this one,
// as in gaps: the tensor is last used at `after`, away from `free` up to `back`, and next used at `need`.
struct Move {
  Index gap;
  Index tensor;
  Index after;
  Index need;
  Index free;
  Index back;
  Index version;
  Index instance;
  bool copies;
  Ns out_start_ns = 0;  // on the axis, from the start of the iteration in which it leaves
  Ns in_start_ns = 0;
  Index wanted = 0;  // the position from which on it should be back if there is room
  Index early = 0;   // the earliest position from which on the lanes have required it to be back so far
};

// The temporary memory of layouts and their timing. Any number of layouts can use it, one after the other.
struct Workbench {
  std::vector<Ns> late_out_ns;  // by position, the waits of the previous timing
  std::vector<Ns> late_in_ns;
  std::vector<Ns> out_done_ns;  // by move
  std::vector<Ns> in_done_ns;
  std::vector<Ns> backlog_ns;        // of the moves that cross the iteration's end
  std::vector<Index> first;          // by position, the first event there, or none
  std::vector<Index> next;           // by event
  std::vector<std::uint64_t> busy;   // a bit for each position with an event
  std::vector<Index> count;          // for counting sorts
  std::vector<std::uint8_t> spoilt;  // by tensor, whether no host copy of it is valid at the iteration's start
  std::vector<Bytes> change;         // by position
  std::vector<Bytes> room;           // by position, the free bytes while all swapped tensors are away
  std::vector<Bytes> left;           // by position, the bytes of `room` that are not yet assigned
  struct Back {
    Ns due;
    Ns duration;
    Index tensor;
    Index move;   // none for an upload
    Index where;  // the position that needs the tensor, or the position of the upload
  };
  std::vector<Back> backs;
};

class Layout {
 public:
  Layout(const Step& step, Workbench& bench) : step_(&step), bench_(&bench) {}

  // Lay the choices out and time them `passes` times, each time with the waits of the previous timing. Takes over the
  // order of `like`, another layout, if these choices lead to the same order. False if a dropped tensor cannot be
  // recomputed; the layout is then unusable.
  bool lay(const Choices& choices, int passes, const Layout& like);

  // Replace the moves by these and time them unchanged. They may differ from the present moves in boundaries and
  // copies only. False, without any change, if they differ in more.
  bool hold(const std::vector<Move>& others);

  const Order& order() const { return *order_; }
  Index length() const { return order_->length(); }
  Bytes peak_bytes() const;
  Index peak_position() const;

  // Return the moves in a gap, in the order of time. A gap has several if recomputed operators read its tensor in
  // between.
  std::span<const Move> moves_of(Index gap) const;

  // Return whether the gap's tensor is away at this position, which counts on across iterations as the gap does.
  bool away(Index gap, Index position) const;

  // Return the bytes by position if every swapped tensor is away for as long as possible, whatever the copies take.
  std::vector<Bytes> least_load() const;

  // Return the bytes over the limit, summed over positions.
  Bytes excess(Bytes limit_bytes) const;

  std::vector<Move> moves;        // by gap, then by time
  std::vector<Index> departures;  // numbers of the moves, in the order in which they leave
  std::vector<Bytes> load_bytes;  // by position
  std::vector<Ns> boundary_ns;    // by position, when memory changes hands
  std::vector<Ns> begin_ns;       // by position, when the operator starts
  std::vector<Ns> end_ns;
  Ns iteration_ns = 0;
  Ns stall_ns = 0;

 private:
  enum Kind : std::uint8_t { out, free, in, need, upload, kinds = 8 };

  bool arrange(const Choices& choices, const Layout& like);
  void gather(const Choices& choices);
  struct Reach {  // positions
    Index lo;
    Index hi;
  };
  std::span<const GapPart> used(std::size_t gap, const Cover& cover) const;
  Reach reached(const Cover& cover) const;
  void sort_departures();
  void sort_returns();
  void lay_axis();
  void plan_copies(const Choices& choices);
  bool make_room(Bytes room_bytes);
  void stay_between();
  bool claim(const Move& move, Index first, Index stop);
  void fill();
  Index stay(const Move& move, Index latest);
  Index return_from(const Move& move, Index earliest);
  void return_in_turn();
  bool decide_copies();
  bool spoil();
  void place_outs();
  void place_backs();
  void demand(const Choices& choices);
  void weigh();

  // Sum up the bytes by position, with each moved tensor away between the two positions that `away` returns.
  template <class Away>
  void sum_up(std::vector<Bytes>& load, Away away) const {
    const Index count = length();
    std::vector<Bytes>& change = bench_->change;
    change.assign(at(count) + 1, 0);
    for (const Move& move : moves) {
      const Bytes size = step_->arrays.size_bytes[at(move.tensor)];
      const auto [from, to] = away(move);
      const Index first = within(from);
      const Index stop = first + (to - from);
      change[at(first)] -= size;
      change[at(std::min(stop, count))] += size;
      if (stop > count) {
        change[0] -= size;
        change[at(stop - count)] += size;
      }
    }
    load.resize(at(count));
    Bytes sum = 0;
    for (Index pos = 0; pos < count; ++pos) {
      sum += change[at(pos)];
      load[at(pos)] = order_->held_bytes[at(pos)] + sum;
    }
  }
  void queue_events();
  void queue_event(Index position, Kind kind, Index move);
  void simulate(int most);
  Ns run_iteration(Ns now);
  bool repeats(Ns now);
  Index within(Index position) const { return position < length() ? position : position - length(); }
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  const Step* step_;
  Workbench* bench_;
  std::shared_ptr<Order> order_;
  Ns out_free_ns_ = 0;  // while an iteration is simulated: when the lanes become free
  Ns in_free_ns_ = 0;
};

}  // namespace tensile::planner
