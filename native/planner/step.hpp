// One step graph as the search uses it: plain arrays, and tables derived from them.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace tensile::planner {

using Ns = std::int64_t;
using Bytes = std::int64_t;
using Index = std::int32_t;

inline constexpr Index none = -1;

struct Access {
  Index tensor;
  bool writes;
  bool stays = false;  // the tensor stays where it is until its next access, because an exchange uses it meanwhile
};

// The interval between two successive accesses of a tensor, with at least one operator in between. `need` counts on
// from `after`: if the gap crosses the end of the iteration, `need` is at least the number of operators.
struct Gap {
  Index tensor;
  Index after;
  Index need;
};

// The step graph as the caller passes it. The accesses of operator k are access[offset[k]] .. access[offset[k + 1] -
// 1], each tensor once. `latency_ns` of an upload is its time on the lane to the device.
struct StepArrays {
  std::vector<Bytes> size_bytes;
  std::vector<std::uint8_t> persistent;
  std::vector<Ns> out_ns;
  std::vector<Ns> in_ns;
  std::vector<Ns> latency_ns;
  std::vector<Bytes> workspace_bytes;
  std::vector<std::uint8_t> upload;
  std::vector<std::uint8_t> repeatable;
  std::vector<Index> offset;
  std::vector<Access> access;
  bool hold = false;  // hold what recomputations read (`Step::present_until`)
};

class Step {
 public:
  // Raises std::invalid_argument for inconsistent arrays.
  explicit Step(StepArrays arrays);

  Index operators() const { return static_cast<Index>(arrays.latency_ns.size()); }
  Index tensors() const { return static_cast<Index>(arrays.size_bytes.size()); }

  Index first_access(Index op) const { return arrays.offset[at(op)]; }
  Index last_access(Index op) const { return arrays.offset[at(op) + 1]; }
  const Access& access(Index number) const { return arrays.access[at(number)]; }

  bool persistent(Index tensor) const { return arrays.persistent[at(tensor)] != 0; }
  bool fresh(Index op, Index tensor) const { return !persistent(tensor) && first_writer[at(tensor)] == op; }

  // Return whether any operator after `since` and before `until` writes the tensor.
  bool written_between(Index tensor, Index since, Index until) const {
    const std::vector<Index>& mine = writers[at(tensor)];
    if (mine.empty() || mine.back() <= since || mine.front() >= until) return false;
    return mine.size() == 1 || written_among(mine, since, until);
  }

  // Return a superset of the gaps that contain the operator or begin or end at it, in order.
  std::span<const Index> gaps_around(Index op) const {
    const std::size_t block = at(op / block_operators_);
    return {around_.data() + around_offset_[block], around_.data() + around_offset_[block + 1]};
  }

  // Return whether any tensor is held beyond its last use.
  bool holds() const { return present_until != last_user; }

  // Return whether the tensor could be dropped in a gap and recomputed by its only writer.
  bool droppable(const Gap& gap) const;

  static std::size_t at(Index index) { return static_cast<std::size_t>(index); }

  StepArrays arrays;
  std::vector<Gap> gaps;             // by tensor, then by time
  std::vector<Index> first_gap;      // by tensor and one more
  std::vector<Index> gap_of_access;  // the gap that starts at each access, or none
  std::vector<Index> first_writer;   // by tensor, none if no operator writes it
  std::vector<Index> last_user;      // by tensor, none if no operator accesses it
  // By tensor, the last operator for which a recomputation may read it without recomputing it first; none if no
  // operator accesses it. That is its last use or, if the tensor is held, the last operator.
  std::vector<Index> present_until;
  std::vector<std::vector<Index>> writers;  // by tensor, in order
  Bytes base_bytes = 0;                     // of all persistent tensors

 private:
  void check() const;
  static bool written_among(const std::vector<Index>& writers, Index since, Index until);
  void hold_sources();
  Bytes saved(Index op, Index since) const;
  void find_gaps(const std::vector<std::vector<std::pair<Index, Index>>>& users);
  void sort_around();

  Index block_operators_ = 1;
  std::vector<std::size_t> around_offset_;  // by block of operators and one more
  std::vector<Index> around_;               // gaps
};

}  // namespace tensile::planner
