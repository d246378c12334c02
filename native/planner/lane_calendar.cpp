#include "lane_calendar.hpp"

#include <algorithm>
#include <bit>

namespace tensile::planner {

LaneCalendar::LaneCalendar(Ns period, Index stretches)
    : period_(std::max<Ns>(1, period)), width_(std::max<Ns>(1, (period_ + stretches - 1) / stretches)) {
  const auto count = static_cast<std::size_t>((period_ + width_ - 1) / width_);
  left_.assign(count, 0);
  tree_.assign(count + 1, 0);
  for (std::size_t k = 0; k < count; ++k) {
    left_[k] = std::min(width_, period_ - static_cast<Ns>(k) * width_);
    tree_[k + 1] += left_[k];
    total_ += left_[k];
    const std::size_t above = (k + 1) + ((k + 1) & (~(k + 1) + 1));
    if (above < tree_.size()) tree_[above] += tree_[k + 1];
  }
}

Ns LaneCalendar::turn_of(Ns time) const { return time >= 0 ? time / period_ : -((-time + period_ - 1) / period_); }

Index LaneCalendar::stretch_at(Ns rest) const { return static_cast<Index>(rest / width_); }

// Return the free time before this time. Free time counts as spread evenly over its stretch.
Ns LaneCalendar::upto(Ns time) const {
  const Ns turn = turn_of(time);
  const Ns rest = time - turn * period_;
  const Index inside = stretch_at(rest);
  Ns sum = turn * total_;
  for (std::size_t k = at(inside); k > 0; k &= k - 1) sum += tree_[k];
  const Ns begin = static_cast<Ns>(inside) * width_;
  const Ns length = std::min(width_, period_ - begin);
  const auto part = static_cast<double>(left_[at(inside)]) * static_cast<double>(rest - begin);
  return sum + static_cast<Ns>(part / static_cast<double>(length));
}

// Return the first time before which this much time is free: the inverse of `upto`.
Ns LaneCalendar::time_of(Ns amount) const {
  if (total_ <= 0) return never;
  Ns turn = amount >= 0 ? amount / total_ : -((-amount + total_ - 1) / total_);
  Ns rest = amount - turn * total_;
  if (rest == 0) {  // the result is the end of the previous period
    --turn;
    rest = total_;
  }
  std::size_t before = 0;  // the most stretches whose total free time is less than that
  for (std::size_t step = std::bit_floor(left_.size()); step > 0; step /= 2) {
    if (before + step >= tree_.size() || tree_[before + step] >= rest) continue;
    before += step;
    rest -= tree_[before];
  }
  before = std::min(before, left_.size() - 1);
  const Ns begin = static_cast<Ns>(before) * width_;
  const Ns length = std::min(width_, period_ - begin);
  const Ns left = std::max<Ns>(1, left_[before]);
  const auto part = static_cast<double>(length) * static_cast<double>(std::min(rest, left));
  return turn * period_ + begin + static_cast<Ns>(part / static_cast<double>(left));
}

Ns LaneCalendar::earliest(Ns from, Ns duration) const {
  if (duration <= 0) return from;
  if (duration > 2 * total_) return never;
  return std::max(from, time_of(upto(from) + duration));
}

Ns LaneCalendar::latest(Ns to, Ns duration) const {
  if (duration <= 0) return to;
  if (duration > 2 * total_) return -never;
  return std::min(to, time_of(upto(to) - duration));
}

void LaneCalendar::change(Index number, Ns by) {
  left_[at(number)] += by;
  total_ += by;
  for (std::size_t k = at(number) + 1; k < tree_.size(); k += k & (~k + 1)) tree_[k] += by;
}

void LaneCalendar::take_from(Ns from, Ns duration) {
  duration = std::min(duration, total_);
  Ns time = from;
  while (duration > 0) {
    const Ns rest = time - turn_of(time) * period_;
    const Index inside = stretch_at(rest);
    const Ns taken = std::min(duration, left_[at(inside)]);
    if (taken > 0) change(inside, -taken);
    duration -= taken;
    if (duration > 0) {
      const Ns end = time - rest + std::min(static_cast<Ns>(inside + 1) * width_, period_);
      time = std::max(end, time_of(upto(end) + 1) - 1);
    }
    if (time - from > 2 * period_) return;
  }
}

void LaneCalendar::take_until(Ns to, Ns duration) {
  duration = std::min(duration, total_);
  Ns time = to - 1;
  while (duration > 0) {
    const Ns rest = time - turn_of(time) * period_;
    const Index inside = stretch_at(rest);
    const Ns taken = std::min(duration, left_[at(inside)]);
    if (taken > 0) change(inside, -taken);
    duration -= taken;
    if (duration > 0) {
      const Ns begin = time - rest + static_cast<Ns>(inside) * width_;
      time = std::min(begin - 1, time_of(upto(begin)) - 1);
    }
    if (to - time > 2 * period_) return;
  }
}

void LaneCalendar::stretch(Ns time, Ns duration) {
  if (duration > 0) change(stretch_at(time - turn_of(time) * period_), duration);
}

}  // namespace tensile::planner
