// See order.hpp for what an order is, and step.hpp for gaps.
#include "order.hpp"

#include <algorithm>
#include <numeric>

namespace tensile::planner {
namespace {

// Depth of a chain of recomputations, counted from 0, up to which it is built; a bound on the recursion. The search
// estimates no chain of more than 12 (sweep.cpp), so few candidates come near it.
constexpr int deepest_chain = 48;

}  // namespace

bool Order::arrange(const Step& step, const Choices& choices) {
  if (!build_sequence(step, choices)) return false;
  find_lifetimes(step);
  compute_totals(step);
  return true;
}

bool Order::was_arranged_for(const Choices& choices) const {
  if (choices.choice.size() != drops_.size()) return false;
  unsigned differing = 0;  // no early exit, so that the compiler uses vector instructions
  for (std::size_t gap = 0; gap < drops_.size(); ++gap)
    differing |= static_cast<unsigned>(choices.choice[gap] == Choice::drop) ^ drops_[gap];
  return differing == 0;
}

Index Order::captured_operator(Index where) const {
  const auto next = std::lower_bound(position.begin(), position.end(), where);
  return static_cast<Index>(next - position.begin());
}

// Write the operators into op_at in order, each after the recomputations that it needs.
bool Order::build_sequence(const Step& step, const Choices& choices) {
  const Index ops = step.operators();
  op_at.clear();
  repeated.clear();
  block.resize(at(ops));
  position.resize(at(ops));
  dropped_.assign(at(step.tensors()), 0);
  recomputed_for_.assign(at(step.tensors()), none);
  bounds_dropped_gap_.assign(at(ops), 0);
  drops_.resize(step.gaps.size());
  for (std::size_t gap = 0; gap < drops_.size(); ++gap) {
    drops_[gap] = choices.choice[gap] == Choice::drop ? 1 : 0;
    if (drops_[gap] != 0)
      bounds_dropped_gap_[at(step.gaps[gap].need)] = bounds_dropped_gap_[at(step.gaps[gap].after)] = 1;
  }
  for (Index op = 0; op < ops; ++op) {
    block[at(op)] = length();
    const bool touches_dropped = bounds_dropped_gap_[at(op)] != 0;
    for (Index number = step.first_access(op); touches_dropped && number < step.last_access(op); ++number) {
      const Index tensor = step.access(number).tensor;
      if (dropped_[at(tensor)] != 0 && !recompute(step, tensor, op, 0)) return false;
    }
    position[at(op)] = length();
    op_at.push_back(op);
    repeated.push_back(0);
    for (Index number = step.first_access(op); touches_dropped && number < step.last_access(op); ++number) {
      const Index gap = step.gap_of_access[at(number)];
      if (gap != none && drops_[at(gap)] != 0) dropped_[at(step.access(number).tensor)] = 1;
    }
  }
  return true;
}

// Add the operators that recompute a tensor for `op`, which reads it: first those for the missing tensors that they
// read. False if that is impossible; part of the chain may then be in op_at.
bool Order::recompute(const Step& step, Index tensor, Index op, int depth) {
  const Index maker = step.first_writer[at(tensor)];
  if (maker == none || step.arrays.repeatable[at(maker)] == 0 || depth > deepest_chain) return false;
  if (step.writers[at(tensor)].size() != 1) return false;
  for (Index number = step.first_access(maker); number < step.last_access(maker); ++number) {
    const Access& source = step.access(number);
    if (source.writes) continue;
    if (step.written_between(source.tensor, maker, op)) return false;
    if (step.persistent(source.tensor) || recomputed_for_[at(source.tensor)] == op) continue;
    const bool present = dropped_[at(source.tensor)] == 0 && step.present_until[at(source.tensor)] >= op;
    if (!present && !recompute(step, source.tensor, op, depth + 1)) return false;
  }
  op_at.push_back(maker);
  repeated.push_back(1);
  for (Index number = step.first_access(maker); number < step.last_access(maker); ++number) {
    if (!step.access(number).writes) continue;
    recomputed_for_[at(step.access(number).tensor)] = op;
    dropped_[at(step.access(number).tensor)] = 0;
  }
  return true;
}

// Compute the lifetimes of all tensors. A recomputation inside a gap accesses the tensor, so it divides the gap into
// parts without accesses: note each part.
void Order::find_lifetimes(const Step& step) {
  const Index count = length();
  held_.assign(at(step.tensors()), {});
  parts_in_time_.clear();
  lives_.clear();
  for (Index pos = 0; pos < count; ++pos) {
    const Index op = op_at[at(pos)];
    for (Index number = step.first_access(op); number < step.last_access(op); ++number) {
      const Access& access = step.access(number);
      Held& here = held_[at(access.tensor)];
      if (access.writes && step.fresh(op, access.tensor)) {
        here.life = static_cast<Index>(lives_.size());
        here.written = 0;
        lives_.push_back({access.tensor, pos, pos});
      } else {
        if (here.latest != none) note_part(access.tensor, pos);
        if (here.life != none) lives_[at(here.life)].last = pos;
      }
      if (here.earliest == none) here.earliest = pos;
      here.latest = pos;
      here.written += access.writes ? 1 : 0;
      if (repeated[at(pos)] == 0) here.gap = step.gap_of_access[at(number)];
    }
  }
  for (Index tensor = 0; tensor < step.tensors(); ++tensor) {
    const Held& here = held_[at(tensor)];
    // The last gap of a persistent tensor goes on to its first access in the next iteration.
    if (step.persistent(tensor) && here.latest != none) note_part(tensor, here.earliest + count);
  }
  sort_parts(step.gaps.size());
}

// If the tensor is in a gap, note the part from its latest access to the one at `need`. There is a part only if
// operators lie between the two.
void Order::note_part(Index tensor, Index need) {
  const Held& here = held_[at(tensor)];
  if (here.gap != none && need - here.latest > 1)
    parts_in_time_.push_back({here.gap, here.latest, need, here.written, here.life});
}

// A counting sort by gap. The counts are written two places ahead, so that after the parts have been placed
// first_part_[gap] and first_part_[gap + 1] are the bounds of each gap.
void Order::sort_parts(std::size_t gaps) {
  first_part_.assign(gaps + 2, 0);
  for (const GapPart& part : parts_in_time_) ++first_part_[at(part.gap) + 2];
  std::partial_sum(first_part_.begin(), first_part_.end(), first_part_.begin());
  parts_.resize(parts_in_time_.size());
  for (const GapPart& part : parts_in_time_) parts_[first_part_[at(part.gap) + 1]++] = part;
}

// Compute the bytes held at each position and the time before it.
void Order::compute_totals(const Step& step) {
  const Index count = length();
  uploads.clear();
  before_ns.resize(at(count) + 1);
  held_bytes.assign(at(count) + 1, 0);
  for (const Life& life : lives_) {  // first the differences, which the loop below turns into sums
    const Bytes size = step.arrays.size_bytes[at(life.tensor)];
    held_bytes[at(life.first)] += size;
    held_bytes[at(life.last) + 1] -= size;
  }
  Bytes held = step.base_bytes;
  Ns passed = 0;
  for (Index pos = 0; pos < count; ++pos) {
    const std::size_t op = at(op_at[at(pos)]);
    held += held_bytes[at(pos)];
    held_bytes[at(pos)] = held + step.arrays.workspace_bytes[op];
    before_ns[at(pos)] = passed;
    passed += step.arrays.latency_ns[op];
    if (step.arrays.upload[op] != 0) uploads.push_back(pos);
  }
  held_bytes.pop_back();
  before_ns[at(count)] = passed;
}

}  // namespace tensile::planner
