// A sweep: one scan along an iteration that makes the choices which bring its load under a limit, using estimates
// only.
//
// The greedy search lays out the whole step for every few choices around one peak, and a graph of a hundred thousand
// operators needs tens of thousands of choices. A sweep makes all of them in one pass over the iteration, like page
// replacement with knowledge of the future (Belady, 1966). Wherever the load is over the limit, the gaps that are
// open at that position compete by memory over cost, the measure of Capuchin (Peng et al., section 4). A chosen
// tensor is subtracted from the load of the following positions, and its copies from the lanes' free time. So later
// choices find full lanes, and recompute tensors instead. Positions come in the order of time, so copies to the host
// are assigned in the order of their deadlines, which is the optimal order on one machine.
//
// Only the choices depend on estimates: the layout that follows is exact and shows what the sweep missed, and the
// next sweep continues from that layout. Every part of a gap enters and leaves the set of open parts once, and a
// bounded number of them is weighed at every position, so the cost is near-linear in operators and accesses.
#pragma once

#include <vector>

#include "lane_calendar.hpp"
#include "layout.hpp"
#include "step.hpp"

namespace tensile::planner {

// The weights of a sweep.
struct Weights {
  bool drops = true;       // allow recomputation
  double lane_price = 0;   // cost of a nanosecond of copying, in nanoseconds, besides the waits that it causes
  double again_price = 1;  // cost of a nanosecond of recomputation, in nanoseconds
};

class Sweep {
 public:
  // Continues from the present choices and their layout. The load to lower may be less than the layout's.
  Sweep(const Step& step, const Layout& layout, const std::vector<Bytes>& load_bytes, Choices& choices,
        Bytes limit_bytes, const Weights& weights);

  // Make choices until the estimated load is under the limit wherever that is possible. Returns their number.
  Index run();

  // Return the number of candidates weighed: the unit of a sweep's work.
  Index weighed() const { return weighed_; }

 private:
  struct Open {  // a part of a gap that may be chosen, or a swap whose tensor is not away yet
    double key;  // an upper bound of its score
    Index part;
    bool before;  // whether it stands for the end of a gap that began in the previous iteration
    bool operator<(const Open& other) const;
  };
  struct Offer {
    Choice choice = Choice::keep;
    double score = 0;
    Ns out_stall = 0;
    Ns in_stall = 0;
    Index away_until = 0;  // a position, counted on across iterations as in the part
  };
  struct Part {
    Index gap;
    Index after;  // position
    Index need;   // position, counted on from `after` across iterations
  };

  void list_parts();
  void reserve_present();
  void open_at(Index position);
  void relieve(Index position);
  double bound_of(const Part& part, Index from) const;
  Offer weigh(const Open& open, Index position) const;
  Offer weigh_swap(const Part& part, Index position) const;
  void take(const Open& open, const Offer& offer, Index position);
  void take_drop(const Part& part, Index position);
  double benefit(Bytes size, Index from, Index until) const;
  bool copied(Index number) const;
  double chain_ns(Index tensor, Index op, int depth) const;
  void make_there(Index tensor, Index op, int depth);
  void hold(Index tensor, Index position);
  Index gap_around(Index tensor, Index op) const;
  void add(Index first, Index stop, Bytes size);
  Ns when(const std::vector<Ns>& axis, Index position) const;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  const Step& step_;
  const Layout& layout_;
  Choices& choices_;
  Bytes limit_bytes_;
  Weights weights_;
  Index count_;
  Ns period_;
  double least_ns_;  // the fixed cost of every choice
  LaneCalendar out_lane_;
  LaneCalendar in_lane_;
  std::vector<Part> parts_;
  std::vector<Index> starting_;    // by position and one more, where in `started_` the parts begin that open there
  std::vector<Index> started_;     // parts
  std::vector<Bytes> change_;      // of the load, by position and one more
  std::vector<Bytes> over_;        // as in Candidates, for the load before the sweep
  std::vector<Index> many_;        // as in Candidates, for the load before the sweep
  std::vector<Index> needed_;      // by gap, an operator before its end for which its tensor must exist, or none
  std::vector<Index> gone_until_;  // by gap, the position up to which its tensor is estimated to be away
  std::vector<Index> held_until_;  // by tensor, the position up to which it stays after its last use, or none
  std::vector<Open> open_;         // a heap, the highest bound first
  Bytes load_ = 0;                 // at the present position
  Index position_ = 0;
  Index chosen_ = 0;
  Index weighed_ = 0;
};

}  // namespace tensile::planner
