// The free time of one copy lane, by intervals ("stretches") of the periodic axis, while a sweep assigns it to
// copies.
//
// Copies count as if the lane could interrupt one copy for another: the calendar records how much the lane copies
// until which time, not the order of copies. One Fenwick tree over the free time of each stretch answers all queries
// in time logarithmic in the number of stretches. Assigning time takes one tree update for each stretch that it uses.
#pragma once

#include <vector>

#include "step.hpp"

namespace tensile::planner {

class LaneCalendar {
 public:
  // A calendar of a free lane, whose period is divided into at most this many stretches.
  LaneCalendar(Ns period, Index stretches);

  // Return how long the lane is free between two times.
  Ns free(Ns from, Ns to) const { return to > from ? upto(to) - upto(from) : 0; }

  // Return the earliest end of an interval from `from` on that contains this much free time; `never` if two periods
  // do not contain it.
  Ns earliest(Ns from, Ns duration) const;

  // Return the latest start of an interval up to `to` that contains this much free time; -`never` if there is none.
  Ns latest(Ns to, Ns duration) const;

  // Assign the first free time from this time on, or the last free time before it, as far as there is free time.
  void take_from(Ns from, Ns duration);
  void take_until(Ns to, Ns duration);

  // Add free time here: the computation waits at this time, and the lane gains the duration of the wait.
  void stretch(Ns time, Ns duration);

  static constexpr Ns never = Ns{1} << 60U;

 private:
  Ns upto(Ns time) const;
  Ns time_of(Ns amount) const;
  Ns turn_of(Ns time) const;
  Index stretch_at(Ns rest) const;
  void change(Index number, Ns by);
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  Ns period_;
  Ns width_;
  Ns total_ = 0;
  std::vector<Ns> left_;  // by stretch: its free time
  std::vector<Ns> tree_;  // Fenwick tree of the sums of `left_`
};

}  // namespace tensile::planner
