// The choices for the gaps of a step graph, and the order of execution that follows from them.
//
// A gap lies between two successive accesses of a tensor, by the operators `after` and `need` (step.hpp). It has one
// choice: keep the tensor, swap it out and in, or drop it and recompute it. A dropped tensor is recomputed right
// before the operator `need`, by executing the operator that wrote it again, together with all missing tensors that
// this operator reads (a chain). Swaps do not change the order, so sets of choices that differ only in swaps share
// one order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "step.hpp"

namespace tensile::planner {

enum class Choice : std::uint8_t { keep, swap, drop };

// The operators lo .. hi at which a swapped tensor must be away, whatever that costs. They count on from the gap's
// start across iterations; `none` if there is no such demand.
struct Cover {
  Index lo = none;
  Index hi = none;

  // Return this range extended to one more operator.
  Cover with(Index op) const { return lo == none ? Cover{op, op} : Cover{std::min(lo, op), std::max(hi, op)}; }
  bool operator==(const Cover&) const = default;
};

struct Choices {
  std::vector<Choice> choice;
  std::vector<Cover> cover;
  std::optional<Bytes> room_bytes = {};  // the memory that swaps are laid into; without it, only the lanes time them
};

// A part of a gap in which no recomputed operator reads the tensor, with at least one operator in between, in
// positions of the order. A swap can use it. `need` counts on from `after` across iterations, as in the gap.
struct GapPart {
  Index gap;
  Index after;
  Index need;
  Index version;  // how often the tensor was written in this iteration before the part starts
  Index instance;
};

template <class Part>
bool shorter(const Part& a, const Part& b) {
  return a.need - a.after < b.need - b.after;
}

class Order {
 public:
  // Compute the order for these choices. False if a dropped tensor cannot be recomputed; the order is then unusable.
  bool arrange(const Step& step, const Choices& choices);

  // Return whether these choices lead to this order.
  bool was_arranged_for(const Choices& choices) const;

  Index length() const { return static_cast<Index>(op_at.size()); }

  // Return the parts of a gap, in the order of time.
  std::span<const GapPart> parts(std::size_t gap) const {
    return {parts_.data() + first_part_[gap], parts_.data() + first_part_[gap + 1]};
  }

  // Return the captured operator that runs at this position or, if the operator at this position runs again, the one
  // for which it does.
  Index captured_operator(Index where) const;

  std::vector<Index> op_at;            // by position, the operator that runs
  std::vector<std::uint8_t> repeated;  // by position, whether the operator runs again to recompute a tensor
  std::vector<Index> block;            // by operator, the first position of the recomputations for it
  std::vector<Index> position;         // by operator, the position at which it runs itself
  std::vector<Index> uploads;          // positions
  std::vector<Bytes> held_bytes;       // by position, the bytes without swaps, including workspaces
  std::vector<Ns> before_ns;           // by position and one more, the latencies of all earlier positions

 private:
  bool build_sequence(const Step& step, const Choices& choices);
  bool recompute(const Step& step, Index tensor, Index op, int depth);
  void find_lifetimes(const Step& step);
  void note_part(Index tensor, Index need);
  void sort_parts(std::size_t gaps);
  void compute_totals(const Step& step);
  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  struct Held {
    Index gap = none;     // the gap that is open, by captured accesses
    Index latest = none;  // position of the latest access
    Index earliest = none;
    Index written = 0;  // times written in this iteration
    Index life = none;
  };
  struct Life {
    Index tensor;
    Index first;
    Index last;
  };
  std::vector<std::uint8_t> drops_;  // by gap
  // By operator, whether a gap in which its tensor is dropped begins or ends there. Only there must accesses be
  // examined.
  std::vector<std::uint8_t> bounds_dropped_gap_;
  std::vector<std::uint8_t> dropped_;  // by tensor
  std::vector<Index> recomputed_for_;  // by tensor, the operator for which it was recomputed last
  std::vector<Held> held_;
  std::vector<Life> lives_;
  std::vector<GapPart> parts_in_time_;   // in order of time
  std::vector<GapPart> parts_;           // by gap, then in order of time
  std::vector<std::size_t> first_part_;  // by gap and one more
};

}  // namespace tensile::planner
