// The busy times of a copy lane on the periodic time axis.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "step.hpp"

namespace tensile::planner {

class Busy {
 public:
  // Remove all copies, and set the period after which times repeat.
  void clear(Ns period);

  // Add a copy. Fastest if copies are added in the order of time.
  void add(Ns start, Ns duration);

  // Finish adding copies. Must be called after the last `add` and before the first `free`.
  void close();

  // Return how long the lane is free between two times.
  Ns free(Ns from, Ns to) const { return std::max<Ns>(0, to - from - (upto(to) - upto(from))); }

 private:
  Ns upto(Ns time) const;

  Ns period_ = 1;
  Ns total_ = 0;
  std::vector<std::pair<Ns, Ns>> parts_;  // start and end within one period
  std::vector<Ns> before_;                // by part: the busy time of all parts before it
};

}  // namespace tensile::planner
