// What a set of choices amounts to: the order of execution, the residency of every tensor, the lanes and the time.
//
// A choice is made for each gap of the step graph: keep the tensor, swap it, or drop it and make it again. The order
// of execution follows: what was dropped is made again right before the operator that needs it, and so is whatever
// its operators read that is not there (a chain). Copies to the host start as early, copies back as late as the lanes
// allow on the time axis, which includes the waits that were found when the same choices were last timed.
#pragma once

#include <cstdint>
#include <vector>

#include "step.hpp"

namespace tensile::planner {

enum class Choice : std::uint8_t { keep, swap, drop };

// For a swap, the operators at which the tensor has to be away, whatever that costs: lo .. hi, counted on from the
// gap's start; none without such a demand.
struct Cover {
  Index lo = none;
  Index hi = none;
};

struct Choices {
  std::vector<Choice> choice;
  std::vector<Cover> cover;
};

// One swap in positions of the order of execution, counted on from `after` as the gaps are.
struct Move {
  Index gap;
  Index tensor;
  Index after;
  Index need;
  Index free;
  Index back;
  Index version;  // how often the tensor had been written in this iteration when it left
  Index instance;
  bool copies;
  Ns out_start_ns = 0;  // on the axis, from the start of the iteration in which it leaves
  Ns in_start_ns = 0;
};

class Layout {
 public:
  explicit Layout(const Step& step) : step_(&step) {}

  // False where something dropped cannot be made again.
  bool lay(const Choices& choices);

  // Boundaries and time for the present order; `passes` times anew with the waits that were found.
  void time(const Choices& choices, int passes);

  Index length() const { return static_cast<Index>(op_at.size()); }
  Bytes peak_bytes() const;
  Index peak_position() const;

  // The captured operator at or right before whose run this position is.
  Index operator_at(Index position) const;

  // Bytes over the limit, summed over positions.
  Bytes excess(Bytes limit_bytes) const;

  std::vector<Index> op_at;             // which operator runs at each position
  std::vector<std::uint8_t> again;      // whether it has run before
  std::vector<Index> block;             // by operator, the first position of what is made again for it
  std::vector<Index> position;          // by operator, where it runs itself
  std::vector<Move> moves;
  std::vector<Bytes> load_bytes;        // by position
  std::vector<Ns> boundary_ns;          // by position, when memory changes hands
  std::vector<Ns> begin_ns;             // by position, when the operator starts
  std::vector<Ns> end_ns;
  Ns iteration_ns = 0;
  Ns stall_ns = 0;

 private:
  bool order(const Choices& choices);
  bool make_again(Index tensor, Index op, int depth);
  void walk(const Choices& choices);
  void lay_axis(const std::vector<Ns>& late_out, const std::vector<Ns>& late_in);
  void plan_copies();
  void place_outs();
  void place_backs();
  void demand(const Choices& choices);
  void weigh();
  void simulate();
  Index first_boundary_from(Ns time) const;
  Index last_boundary_by(Ns time) const;
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  const Step* step_;
  std::vector<std::uint8_t> dropped_;
  std::vector<Index> made_for_;
  struct Life {
    Index tensor;
    Index first;
    Index last;
  };
  std::vector<Life> lives_;
  std::vector<Ns> late_out_;
  std::vector<Ns> late_in_;
};

}  // namespace tensile::planner
