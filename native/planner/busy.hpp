// How long a lane is busy within a stretch of the periodic axis.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "step.hpp"

namespace tensile::planner {

class Busy {
 public:
  // Forget all copies; times from now on repeat after `period`.
  void clear(Ns period);

  // One copy. Quickest where they are added in the order of time.
  void add(Ns start, Ns duration);

  // Has to come between the last copy and the first question.
  void close();

  // How long the lane is free between two times.
  Ns free(Ns from, Ns to) const { return std::max<Ns>(0, to - from - (upto(to) - upto(from))); }

 private:
  Ns upto(Ns time) const;

  Ns period_ = 1;
  Ns total_ = 0;
  std::vector<std::pair<Ns, Ns>> parts_;  // start and end within one period
  std::vector<Ns> before_;                // by part
};

}  // namespace tensile::planner
