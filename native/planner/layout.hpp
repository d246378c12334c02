// What a set of choices amounts to: the order of execution, the residency of every tensor, the lanes and the time.
//
// Copies to the host start as early, copies back as late as the lanes allow on the time axis, which includes the
// waits that were found when the same choices were last timed; or as the room allows that they are laid into. A
// search lays out thousands of sets of choices: nothing is allocated for one more, and what does not depend on swaps
// is taken over from the layout before it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "order.hpp"
#include "step.hpp"

namespace tensile::planner {

// One swap in positions of the order of execution, counted on from `after` as the gaps are.
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
  Index wanted = 0;  // from where on it would be back now, were there room
  Index early = 0;   // from where on it may be back if there is room: the earliest that the lanes called for so far
};

// What timing needs on the way; one serves any number of layouts, one after the other.
struct Workbench {
  std::vector<Ns> late_out_ns;  // by position, the waits that were found last
  std::vector<Ns> late_in_ns;
  std::vector<Ns> out_done_ns;  // by move
  std::vector<Ns> in_done_ns;
  std::vector<Ns> backlog_ns;        // of the moves that cross the iteration's end
  std::vector<Index> first;          // by position, the first event there, or none
  std::vector<Index> next;           // by event
  std::vector<std::uint64_t> busy;   // a bit for each position with an event
  std::vector<Index> count;          // for counting sorts
  std::vector<std::uint8_t> spoilt;  // by tensor
  std::vector<Bytes> change;         // by position
  std::vector<Bytes> room;           // by position, with everything away that is swapped
  std::vector<Bytes> left;           // of that, while it is given out
  struct Back {
    Ns due;
    Ns duration;
    Index tensor;
    Index move;   // none for an upload
    Index where;  // the position that needs it, or of the upload
  };
  std::vector<Back> backs;
};

class Layout {
 public:
  Layout(const Step& step, Workbench& bench) : step_(&step), bench_(&bench) {}

  // Lay the choices out, then time them `passes` times, each anew with the waits that were found. The order of
  // `like`, another layout, is taken over where these choices lead to it. False, and of no use, where something
  // dropped cannot be made again.
  bool lay(const Choices& choices, int passes, const Layout& like);

  // Time these moves as they are instead of its own, of which they may differ in boundaries and copies only. False,
  // and nothing done, where they differ in more.
  bool hold(const std::vector<Move>& given);

  // Let nothing be taken over any more: the step's times are others.
  void forget() { order_.reset(); }

  const Order& order() const { return *order_; }
  Index length() const { return order_->length(); }
  Bytes peak_bytes() const;
  Index peak_position() const;

  // The moves in a gap, in order of time: several where what is made again reads its tensor in between.
  std::span<const Move> moves_of(Index gap) const;

  // Whether the gap's tensor is away at this position, counted on as the gap is.
  bool away(Index gap, Index position) const;

  // Bytes by position with everything away for as long as it can be that is swapped: what no copy's time changes.
  std::vector<Bytes> least_load() const;

  // Bytes over the limit, summed over positions.
  Bytes excess(Bytes limit_bytes) const;

  std::vector<Move> moves;        // by gap, then by time
  std::vector<Index> departures;  // moves by when they leave
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
  std::span<const Stretch> used(std::size_t gap, const Cover& cover) const;
  Reach reached(const Cover& cover) const;
  void sort_departures();
  void sort_returns();
  void lay_axis();
  void plan_copies(const Choices& choices);
  bool make_room(Bytes room_bytes);
  void stay_between();
  bool claim(const Move& one, Index first, Index stop);
  void fill();
  Index stay(const Move& one, Index latest);
  Index return_from(const Move& one, Index earliest);
  void return_in_turn();
  bool decide_copies();
  bool spoil();
  void place_outs();
  void place_backs();
  void demand(const Choices& choices);
  void weigh();

  // Bytes by position, with each moved tensor away between two positions.
  template <class Away>
  void sum_up(std::vector<Bytes>& load, Away away) const {
    const Index count = length();
    std::vector<Bytes>& change = bench_->change;
    change.assign(at(count) + 1, 0);
    for (const Move& one : moves) {
      const Bytes size = step_->arrays.size_bytes[at(one.tensor)];
      const auto [from, to] = away(one);
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
  Ns out_free_ns_ = 0;  // while an iteration is simulated: when the lanes are free
  Ns in_free_ns_ = 0;
};

}  // namespace tensile::planner
