// The search by sweeps: choices made by sweeps along the whole iteration, and remade around random operators.
//
// A sweep's choices are laid into the limit (room.cpp), so a wrong estimate of the lanes costs time but never memory.
// One layout therefore shows how good the choices are, and no demands have to be searched operator by operator.
#include <algorithm>
#include <iterator>
#include <utility>

#include "random.hpp"
#include "search.hpp"

namespace tensile::planner {
namespace {

// Values of `lane_price` that `sweep_again` draws from. They reach higher than those of the greedy search, for steps
// that copy more than the lanes can.
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

// Run one sweep. Returns whether it made any choice.
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
  const auto standing = [&](const Layout& layout) { return std::pair(layout.iteration_ns, lane_ns(layout)); };
  while (layouts_ < end) {
    const auto width = static_cast<Index>(1 + random.below(1 + ops / 8) + random.below(1 + ops / 64));
    const auto first = static_cast<Index>(random.below(ops));
    const double price = swept_prices[random.below(std::size(swept_prices))];
    ++layouts_;  // count a round that undoes nothing too, so that the loop ends
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

// Undo a random half of the choices around these operators. Returns whether anything was undone.
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
