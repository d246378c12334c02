// What may be chosen next to lower a layout's peak, and how much each choice promises for what it seems to cost.
#pragma once

#include <vector>

#include "busy.hpp"
#include "layout.hpp"
#include "step.hpp"

namespace tensile::planner {

inline constexpr double step_price =
    1e-4;  // of an iteration, for each choice: many small tensors are not worth one large

// What the greedy search may do, and how it weighs.
struct Manner {
  bool drops = true;      // make things again
  double lane_price = 0;  // nanoseconds that a nanosecond on a lane counts as, besides the waits that it causes
  int tried = 6;          // candidates that are laid out for each step
  int together = 1;       // the best of so many tensors are chosen at once, while that is not too slow: large graphs
  bool careful = false;   // at once only what the lanes have room for beside one another
  double surprise =
      0.1;  // of an iteration, by how much that may be slower than foreseen; from 1 on it does not matter
};

struct Candidate {
  Index gap;
  Choice choice;
  Cover cover;
  double score = 0;
  double cost_ns = 0;
  // For a new swap: when it may leave and has to be back, and how long the lanes are free for it until the peak
  // and from it on.
  Ns leaves_ns = 0;
  Ns due_ns = 0;
  Ns out_room_ns = 0;
  Ns in_room_ns = 0;
};

class Candidates {
 public:
  Candidates(const Step& step, const Choices& choices) : step_(&step), choices_(&choices) {}

  // All for this layout of what is chosen, in no order that matters.
  const std::vector<Candidate>& find(const Layout& layout, Bytes limit_bytes, const Manner& manner);

 private:
  void look_around(Bytes limit_bytes);
  void consider(Index number, const Manner& manner);
  void consider_swap(Index number, Index inside, double benefit, const Manner& manner);
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
  Index peak_op_ = 0;  // the captured operator there
  Bytes over_peak_ = 0;
  double least_ns_ = 0;      // what any choice counts as
  std::vector<Bytes> over_;  // over the limit, summed over all positions before each
  std::vector<Index> many_;  // how many of those positions are over it
  Busy out_lane_;
  Busy in_lane_;
  std::vector<Candidate> found_;
};

}  // namespace tensile::planner
