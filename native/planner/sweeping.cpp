// Choices made by sweeps along the whole iteration, and made again around random places.
//
// A sweep's choices are laid into the limit (room.cpp): where its estimate of the lanes was wrong that costs time, never
// memory. So one layout says how good they are, and no demand has to be found operator by operator.
#include <algorithm>
#include <iterator>
#include <utility>

#include "random.hpp"
#include "search.hpp"

namespace tensile::planner {
namespace {

// As `lane_prices` of the greedy search, and higher: what lanes are worth where more is copied than they can.
constexpr double swept_prices[] = {0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0};

}  // namespace

bool Search::sweep(Bytes limit_bytes, const Weights& weights, int rounds) {
  clear();
  if (layout_.peak_bytes() <= limit_bytes) return true;
  for (int round = 0; round < rounds; ++round) {
    Choices before = choices_;
    if (!sweep_once(limit_bytes, weights, layout_.load_bytes)) return false;
    if (fill(limit_bytes)) return true;
    if (settle()) continue;
    choices_ = std::move(before);
    settle();
    return false;
  }
  return false;
}

// Whether anything was chosen.
bool Search::sweep_once(Bytes limit_bytes, const Weights& weights, const std::vector<Bytes>& load_bytes) {
  return Sweep(step_, layout_, load_bytes, choices_, limit_bytes, weights).run() > 0;
}

int Search::sweep_again(bool drops, Index most, std::uint64_t seed) {
  if (!choices_.room_bytes) return 0;
  const Index end = layouts_ + most;
  const Bytes limit_bytes = *choices_.room_bytes;
  Random random(seed);
  const auto ops = static_cast<std::uint64_t>(step_.operators());
  int better = 0;
  Choices best = choices_;
  best_ = layout_;
  const auto standing = [&](const Layout& one) { return std::pair(one.iteration_ns, lane_ns(one)); };
  while (layouts_ < end) {
    const auto width = static_cast<Index>(1 + random.below(1 + ops / 8) + random.below(1 + ops / 64));
    const auto first = static_cast<Index>(random.below(ops));
    const double price = swept_prices[random.below(std::size(swept_prices))];
    ++layouts_;  // so that a round without anything to undo counts too
    choices_.room_bytes.reset();
    const bool swept = undo_around(first, width, random.below(~std::uint64_t{0})) && settle() &&
                       sweep_once(limit_bytes, Weights{drops, price, 1.0}, layout_.least_load());
    if (swept && fill(limit_bytes) && standing(layout_) < standing(best_)) {
      ++better;
      best = choices_;
      best_ = layout_;
    } else {
      choices_ = best;
      layout_ = best_;
    }
  }
  return better;
}

// Keep half of what is chosen around these operators. Whether anything was.
bool Search::undo_around(Index first, Index width, std::uint64_t draw) {
  Random random(draw);
  bool changed = false;
  const auto near = [&](Index op) { return op >= first && op < first + width; };
  for (std::size_t gap = 0; gap < step_.gaps.size(); ++gap) {
    if (choices_.choice[gap] == Choice::keep) continue;
    if (!near(step_.gaps[gap].after) && !near(step_.gaps[gap].need)) continue;
    if (random.below(2) == 0) continue;
    choices_.choice[gap] = Choice::keep;
    choices_.cover[gap] = {};
    changed = true;
  }
  return changed;
}

}  // namespace tensile::planner
