// How much of one copy lane is still free, by stretches of the periodic axis, while a sweep gives it out.
//
// Copies are counted as if a lane could leave one and go on with another: what matters is how much it copies until
// when, not which copy goes first. Two Fenwick trees' work is done by one, over what each stretch has left: any
// question takes steps logarithmic in the stretches, and giving time out costs one more for each stretch used up.
#pragma once

#include <vector>

#include "step.hpp"

namespace tensile::planner {

class LaneCalendar {
 public:
  // All of a period is free, cut into at most so many stretches.
  LaneCalendar(Ns period, Index stretches);

  // How long the lane is free between two times.
  Ns free(Ns from, Ns to) const { return to > from ? upto(to) - upto(from) : 0; }

  // The first time until which the lane is free for so long from this time on; `never` where it is not within two
  // periods.
  Ns earliest(Ns from, Ns duration) const;

  // The last time from which on the lane is free for so long until this time; -`never` where it is not.
  Ns latest(Ns to, Ns duration) const;

  // Give out the first free time from this time on, or the last one until then: as much of it as there is.
  void take_from(Ns from, Ns duration);
  void take_until(Ns to, Ns duration);

  // The axis waits here, and the lane gains as much.
  void stretch(Ns time, Ns duration);

  static constexpr Ns never = Ns{1} << 60U;

 private:
  Ns upto(Ns time) const;
  Ns found(Ns amount) const;
  Ns turn_of(Ns time) const;
  Index stretch_at(Ns rest) const;
  void change(Index number, Ns by);
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  Ns period_;
  Ns width_;
  Ns total_ = 0;
  std::vector<Ns> left_;  // by stretch
  std::vector<Ns> tree_;  // sums of that
};

}  // namespace tensile::planner
