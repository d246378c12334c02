// The choices for the gaps of a step graph, and the order of execution that follows from them.
//
// Each gap has one choice: keep the tensor, swap it, or drop and recompute it. A dropped tensor is recomputed right
// before the operator that needs it, together with all missing tensors that its operators read (a chain). Swaps do
// not change the order, so sets of choices that differ only in swaps share one order.
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
struct Stretch {
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
  bool follows(const Choices& choices) const;

  Index length() const { return static_cast<Index>(op_at.size()); }

  // Return the parts of a gap, in the order of time.
  std::span<const Stretch> parts(std::size_t gap) const {
    return {parts_.data() + first_part_[gap], parts_.data() + first_part_[gap + 1]};
  }

  // Return the captured operator that runs at this position, or for which the operator at this position is
  // recomputed.
  Index operator_at(Index where) const;

  std::vector<Index> op_at;         // by position, the operator that runs
  std::vector<std::uint8_t> again;  // by position, whether the operator is recomputed
  std::vector<Index> block;         // by operator, the first position of the recomputations for it
  std::vector<Index> position;      // by operator, the position at which it runs itself
  std::vector<Index> uploads;       // positions
  std::vector<Bytes> held_bytes;    // by position, the bytes without swaps, including workspaces
  std::vector<Ns> before_ns;        // by position and one more, the latencies of all earlier positions

 private:
  bool lay_out(const Step& step, const Choices& choices);
  bool make_again(const Step& step, Index tensor, Index op, int depth);
  void walk(const Step& step);
  void note(Index tensor, Index need);
  void sort_parts(std::size_t gaps);
  void sum_up(const Step& step);
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
  std::vector<std::uint8_t> drops_;    // by gap
  std::vector<std::uint8_t> wanted_;   // by operator, whether the gap of a dropped tensor starts or ends there
  std::vector<std::uint8_t> dropped_;  // by tensor
  std::vector<Index> made_for_;        // by tensor, the operator for which it was recomputed last
  std::vector<Held> held_;
  std::vector<Life> lives_;
  std::vector<Stretch> noted_;           // in order of time
  std::vector<Stretch> parts_;           // by gap, then in order of time
  std::vector<std::size_t> first_part_;  // by gap and one more
};

}  // namespace tensile::planner
