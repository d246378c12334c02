// One scan along an iteration that chooses as much as brings its load under a limit, by estimates alone.
//
// The greedy search lays everything out for every few choices around one peak; a graph of a hundred thousand operators
// has tens of thousands of choices to make. A sweep makes all of them on one way through the iteration, as page
// replacement does that knows the future (Belady, 1966): wherever the load is over the limit, the gaps that are open
// there compete, by what Capuchin (Peng et al., section 4) weighs, memory over cost. What leaves is taken out of the
// load of all that follows, and its copies out of the lanes' free time, so that later choices see full lanes and make
// things again instead. Since positions come in the order of time, copies to the host are given out in the order of
// their deadlines, which is what one machine does best.
//
// What is estimated is only what is chosen: the layout that follows is exact, and says what was missed; the next
// sweep goes on from there. Every gap's parts enter and leave the set of open ones once, and at every position a
// bounded number of them is weighed, so the cost is near-linear in operators and accesses.
#pragma once

#include <vector>

#include "lane_calendar.hpp"
#include "layout.hpp"
#include "step.hpp"

namespace tensile::planner {

// How a sweep weighs.
struct Weights {
  bool drops = true;      // make things again
  double lane_price = 0;  // nanoseconds that a nanosecond on a lane counts as, besides the waits that it causes
  double again_price = 1; // the same for computing something again
};

class Sweep {
 public:
  // Goes on from what is chosen, as it was laid out; the load to relieve may be less than the layout's.
  Sweep(const Step& step, const Layout& layout, const std::vector<Bytes>& load_bytes, Choices& choices,
        Bytes limit_bytes, const Weights& weights);

  // Choose until the estimated load is under the limit wherever that can be. Returns how many choices were made.
  Index run();

  // How many candidates were weighed: the unit of a sweep's work.
  Index weighed() const { return weighed_; }

 private:
  struct Open {  // a part of a gap that may be chosen, or a swap that is not away yet
    double key;  // an upper bound of its score
    Index part;
    bool before;  // of a gap that crosses the end, what lies at the iteration's start
    bool operator<(const Open& other) const;
  };
  struct Offer {
    Choice choice = Choice::keep;
    double score = 0;
    Ns out_stall = 0;
    Ns in_stall = 0;
    Index away_until = 0;  // unrolled as the part is
  };
  struct Part {
    Index gap;
    Index after;  // position
    Index need;   // position, counted on from `after`
  };

  void list_parts();
  void reserve_present();
  void open_at(Index position);
  void relieve(Index position);
  double bound_of(const Part& part, Index from) const;
  Offer weigh(const Open& one, Index position) const;
  Offer weigh_swap(const Part& part, Index position) const;
  void take(const Open& one, const Offer& offer, Index position);
  void take_drop(const Part& part, Index position);
  double benefit(Bytes size, Index from, Index until) const;
  bool copied(Index gap) const;
  double chain_ns(Index tensor, Index op, int depth) const;
  void make_there(Index tensor, Index op, int depth);
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
  double least_ns_;  // what any choice counts as
  LaneCalendar out_lane_;
  LaneCalendar in_lane_;
  std::vector<Part> parts_;
  std::vector<Index> starting_;  // by position and one more, where in `started_` the parts begin that open there
  std::vector<Index> started_;   // parts
  std::vector<Bytes> change_;                 // of the load, by position and one more
  std::vector<Bytes> over_;                   // over the limit before the sweep, summed over all positions before each
  std::vector<Index> many_;                   // how many of those positions are over it
  std::vector<Index> needed_;  // by gap, the operator for which its tensor has to be there before the gap ends, or none
  std::vector<Index> gone_until_;  // by gap, up to which position it is estimated away
  std::vector<Open> open_;         // a heap, the highest bound first
  Bytes load_ = 0;                 // at the present position
  Index position_ = 0;
  Index chosen_ = 0;
  Index weighed_ = 0;
};

}  // namespace tensile::planner
