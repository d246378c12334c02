#include "busy.hpp"

#include <algorithm>

namespace tensile::planner {
namespace {

Ns turn_of(Ns time, Ns period) { return time >= 0 ? time / period : -((-time + period - 1) / period); }

}  // namespace

void Busy::clear(Ns period) {
  period_ = period;
  parts_.clear();
}

void Busy::add(Ns start, Ns duration) {
  start -= turn_of(start, period_) * period_;
  const Ns stop = start + duration;
  parts_.emplace_back(start, std::min(stop, period_));
  if (stop > period_) parts_.emplace_back(0, std::min(stop - period_, period_));
}

void Busy::close() {
  // Copies added in the order of time are sorted except for a rotation at the start of the period.
  std::rotate(parts_.begin(), std::min_element(parts_.begin(), parts_.end()), parts_.end());
  if (!std::is_sorted(parts_.begin(), parts_.end())) std::sort(parts_.begin(), parts_.end());
  before_.clear();
  total_ = 0;
  for (const auto& [start, stop] : parts_) {
    before_.push_back(total_);
    total_ += stop - start;
  }
}

Ns Busy::upto(Ns time) const {
  const Ns turn = turn_of(time, period_);
  const Ns rest = time - turn * period_;
  const auto next = std::upper_bound(parts_.begin(), parts_.end(), rest,
                                     [](Ns value, const std::pair<Ns, Ns>& part) { return value < part.first; });
  const Ns whole_turns = turn * total_;
  if (next == parts_.begin()) return whole_turns;
  const auto k = static_cast<std::size_t>(next - parts_.begin()) - 1;
  return whole_turns + before_[k] + std::min(parts_[k].second - parts_[k].first, rest - parts_[k].first);
}

}  // namespace tensile::planner
