// The candidate choices that may lower a layout's peak next, each with its estimated benefit and cost.
#pragma once

#include <vector>

#include "busy.hpp"
#include "layout.hpp"
#include "step.hpp"

namespace tensile::planner {

inline constexpr double step_price =
    1e-4;  // fixed cost of each choice, as a part of an iteration: prefers one large tensor to many small ones

// The options and weights of the greedy search.
struct GreedyOptions {
  bool drops = true;      // allow recomputation
  double lane_price = 0;  // cost of a nanosecond of copying, in nanoseconds, besides the waits that it causes
  int tried = 6;          // candidates that are laid out for each step
  int together = 1;       // most tensors that one step chooses at once, for large graphs; fewer if that is too slow
  bool careful = false;   // choose only swaps at once for which the lanes have room side by side
  double surprise =
      0.1;  // how much slower than estimated such a step may be, as a part of an iteration; from 1 on, unlimited
};

struct Candidate {
  Index gap;
  Choice choice;
  Cover cover;
  double score = 0;
  double cost_ns = 0;
  // For a new swap: when the tensor may leave and when it must be back, and how long the lanes are free for its
  // copies before and after the peak.
  Ns leaves_ns = 0;
  Ns due_ns = 0;
  Ns out_room_ns = 0;
  Ns in_room_ns = 0;
};

class Candidates {
 public:
  Candidates(const Step& step, const Choices& choices) : step_(&step), choices_(&choices) {}

  // Return all candidates for this layout of the present choices, in no particular order.
  const std::vector<Candidate>& find(const Layout& layout, Bytes limit_bytes, const GreedyOptions& options);

 private:
  void look_around(Bytes limit_bytes);
  void consider(Index number, const GreedyOptions& options);
  void consider_swap(Index number, Index inside, double benefit, const GreedyOptions& options);
  void consider_longer(Index number, Index inside);
  void consider_instead(Index number);
  double benefit(const Gap& gap) const;
  double nearby(const Gap& gap) const;
  double chain_ns(Index tensor, Index op, int depth) const;
  bool given_up(Index tensor, Index op) const;
  Index first_of(const Gap& gap) const { return layout_->order().position[at(gap.after)] + 1; }
  Index unrolled(const std::vector<Index>& where, Index op) const;
  Ns when(const std::vector<Ns>& axis, Index position) const;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  const Step* step_;
  const Choices* choices_;
  const Layout* layout_ = nullptr;
  Ns period_ = 0;
  Index peak_ = 0;     // position
  Index peak_op_ = 0;  // the captured operator at the peak
  Bytes over_peak_ = 0;
  double least_ns_ = 0;      // the fixed cost of every choice
  std::vector<Bytes> over_;  // by position: bytes over the limit, summed over all earlier positions
  std::vector<Index> many_;  // by position: the number of earlier positions over the limit
  Busy out_lane_;
  Busy in_lane_;
  std::vector<Candidate> found_;
};

}  // namespace tensile::planner
