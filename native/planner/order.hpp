// What is chosen for each gap of a step graph, and the order of execution that follows.
//
// A choice is made for each gap: keep the tensor, swap it, or drop it and make it again. What was dropped is made
// again right before the operator that needs it, and so is whatever its operators read that is not there (a chain).
// Swaps change nothing about the order: where only they differ, sets of choices share one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "step.hpp"

namespace tensile::planner {

enum class Choice : std::uint8_t { keep, swap, drop };

// For a swap, the operators at which the tensor has to be away, whatever that costs: lo .. hi, counted on from the
// gap's start; none without such a demand.
struct Cover {
  Index lo = none;
  Index hi = none;

  // This and one more operator.
  Cover with(Index op) const { return lo == none ? Cover{op, op} : Cover{std::min(lo, op), std::max(hi, op)}; }
  bool operator==(const Cover&) const = default;
};

struct Choices {
  std::vector<Choice> choice;
  std::vector<Cover> cover;
  std::optional<Bytes> room_bytes = {};  // the memory that swaps are laid into; without, the lanes alone say when
};

// A part of a gap that nothing made again reads in, with at least one operator in between: what a swap can use, in
// positions of the order. `need` is counted on from `after` as the gap's is.
struct Stretch {
  Index gap;
  Index after;
  Index need;
  Index version;  // how often the tensor had been written in this iteration at its start
  Index instance;
};

template <class Part>
bool shorter(const Part& a, const Part& b) {
  return a.need - a.after < b.need - b.after;
}

class Order {
 public:
  // False, and of no use, where something dropped cannot be made again.
  bool arrange(const Step& step, const Choices& choices);

  // Whether these choices lead to this order.
  bool follows(const Choices& choices) const;

  Index length() const { return static_cast<Index>(op_at.size()); }

  // The parts of a gap, in order of time.
  std::span<const Stretch> parts(std::size_t gap) const {
    return {parts_.data() + first_part_[gap], parts_.data() + first_part_[gap + 1]};
  }

  // The captured operator at or right before whose run this position is.
  Index operator_at(Index where) const;

  std::vector<Index> op_at;         // which operator runs at each position
  std::vector<std::uint8_t> again;  // whether it has run before
  std::vector<Index> block;         // by operator, the first position of what is made again for it
  std::vector<Index> position;      // by operator, where it runs itself
  std::vector<Index> uploads;       // positions
  std::vector<Bytes> held_bytes;    // by position, if nothing were swapped, workspaces included
  std::vector<Ns> before_ns;        // by position and one more, the latencies of all before it

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
  std::vector<std::uint8_t> wanted_;   // by operator, whether something dropped ends its gap there
  std::vector<std::uint8_t> dropped_;  // by tensor
  std::vector<Index> made_for_;        // by tensor, the operator for which it was made again last
  std::vector<Held> held_;
  std::vector<Life> lives_;
  std::vector<Stretch> noted_;           // in order of time
  std::vector<Stretch> parts_;           // by gap, then in order of time
  std::vector<std::size_t> first_part_;  // by gap and one more
};

}  // namespace tensile::planner
