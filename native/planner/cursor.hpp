// Finds boundaries on a periodic axis of time.
#pragma once

#include <algorithm>
#include <vector>

#include "step.hpp"

namespace tensile::planner {

// Finds boundaries of a periodic axis for a sequence of times that only rises or only falls. Each search starts at
// the previous result and doubles its step (galloping search), because the next result is usually near.
class Cursor {
 public:
  Cursor(const std::vector<Ns>& boundary_ns, Ns period) : at_(boundary_ns), period_(period) {}

  // Return the first boundary at this time or later, numbered across iterations. Times must rise.
  Index first_from(Ns time) {
    const Ns rest = turn_to(time, 0);
    std::size_t low = found_;  // all boundaries before it are too early
    std::size_t step = 1;
    while (low + step <= at_.size() && at_[low + step - 1] < rest) {
      low += step;
      step *= 2;
    }
    const auto end = at_.begin() + static_cast<std::ptrdiff_t>(std::min(low + step - 1, at_.size()));
    found_ = static_cast<std::size_t>(std::lower_bound(at_.begin() + static_cast<std::ptrdiff_t>(low), end, rest) -
                                      at_.begin());
    return whole();
  }

  // Return the last boundary at this time or earlier, numbered across iterations. Times must fall.
  Index last_by(Ns time) {
    const Ns rest = turn_to(time, at_.size());
    std::size_t high = found_;  // all boundaries from it on are too late
    std::size_t step = 1;
    while (high >= step && at_[high - step] > rest) {
      high -= step;
      step *= 2;
    }
    const auto begin = at_.begin() + static_cast<std::ptrdiff_t>(high >= step ? high - step + 1 : 0);
    found_ = static_cast<std::size_t>(std::upper_bound(begin, at_.begin() + static_cast<std::ptrdiff_t>(high), rest) -
                                      at_.begin());
    return whole() - 1;
  }

 private:
  // Return the time within its iteration. If that iteration is not the one of the previous search, start over.
  Ns turn_to(Ns time, std::size_t start) {
    Ns rest = time - turn_ * period_;
    if (!begun_ || rest < 0 || rest >= period_) {
      turn_ = time / period_ - (time % period_ < 0 ? 1 : 0);
      rest = time - turn_ * period_;
      found_ = start;
      begun_ = true;
    }
    return rest;
  }

  Index whole() const {
    return static_cast<Index>(turn_) * static_cast<Index>(at_.size()) + static_cast<Index>(found_);
  }

  const std::vector<Ns>& at_;
  Ns period_;
  Ns turn_ = 0;
  std::size_t found_ = 0;
  bool begun_ = false;
};

}  // namespace tensile::planner
