#include "step.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace tensile::planner {
namespace {

constexpr Index most_blocks = 64;
// A tensor is held if the results that depend on it are this many times its size. At 1, chains of operators whose
// results are equally large would exchange one tensor for another.
constexpr Bytes least_gain = 2;

}  // namespace

Step::Step(StepArrays step_arrays) : arrays(std::move(step_arrays)) {
  check();
  const auto count = at(tensors());
  first_writer.assign(count, none);
  last_user.assign(count, none);
  writers.resize(count);
  gap_of_access.assign(arrays.access.size(), none);
  std::vector<std::vector<std::pair<Index, Index>>> users(count);  // (operator, access number)
  for (Index op = 0; op < operators(); ++op) {
    for (Index number = first_access(op); number < last_access(op); ++number) {
      const Access& access = this->access(number);
      if (access.writes) {
        if (first_writer[at(access.tensor)] == none) first_writer[at(access.tensor)] = op;
        writers[at(access.tensor)].push_back(op);
      }
      last_user[at(access.tensor)] = op;
      users[at(access.tensor)].emplace_back(op, number);
    }
  }
  find_gaps(users);
  sort_around();
  present_until = last_user;
  if (arrays.hold) hold_sources();
}

// Hold each tensor from which much larger results can be recomputed that are used after the tensor's own last use. To
// recompute one of these results without the tensor, the tensor's operator has to run again, and that for each of
// them.
void Step::hold_sources() {
  std::vector<Bytes> results(at(tensors()), 0);
  for (Index op = 0; op < operators(); ++op) {
    if (arrays.repeatable[at(op)] == 0) continue;
    for (Index number = first_access(op); number < last_access(op); ++number) {
      const Access& one = access(number);
      if (!one.writes && !persistent(one.tensor)) results[at(one.tensor)] += saved(op, last_user[at(one.tensor)]);
    }
  }
  for (Index tensor = 0; tensor < tensors(); ++tensor)
    if (Bytes size = arrays.size_bytes[at(tensor)]; size > 0 && results[at(tensor)] >= least_gain * size)
      present_until[at(tensor)] = operators() - 1;
}

// Return the bytes of this operator's results that can be dropped in a gap that ends after `since`.
Bytes Step::saved(Index op, Index since) const {
  Bytes sum = 0;
  for (Index number = first_access(op); number < last_access(op); ++number) {
    const Index tensor = access(number).tensor;
    const Index last = first_gap[at(tensor) + 1] - 1;  // the tensor's gap that ends last, if it has any
    if (!access(number).writes || last < first_gap[at(tensor)]) continue;
    if (gaps[at(last)].need > since && droppable(gaps[at(last)])) sum += arrays.size_bytes[at(tensor)];
  }
  return sum;
}

void Step::find_gaps(const std::vector<std::vector<std::pair<Index, Index>>>& users) {
  for (Index tensor = 0; tensor < tensors(); ++tensor) {
    const auto& mine = users[at(tensor)];
    first_gap.push_back(static_cast<Index>(gaps.size()));
    if (persistent(tensor)) base_bytes += arrays.size_bytes[at(tensor)];
    for (std::size_t k = 0; k < mine.size(); ++k) {
      const bool last = k + 1 == mine.size();
      if (last && !persistent(tensor)) break;
      const Index need = last ? mine[0].first + operators() : mine[k + 1].first;
      if (need - mine[k].first <= 1 || access(mine[k].second).stays) continue;
      gap_of_access[at(mine[k].second)] = static_cast<Index>(gaps.size());
      gaps.push_back({tensor, mine[k].first, need});
    }
  }
  first_gap.push_back(static_cast<Index>(gaps.size()));
}

// List the gaps by blocks of operators. The number of blocks is limited, because a long gap is listed in many of
// them.
void Step::sort_around() {
  block_operators_ = operators() / most_blocks + 1;
  const Index blocks = (operators() - 1) / block_operators_ + 1;
  const auto each_block = [&](const Gap& gap, const auto& visit) {
    const Index first = gap.after / block_operators_;
    const bool crosses = gap.need >= operators();
    const Index stop = crosses ? blocks : gap.need / block_operators_ + 1;
    const Index wrapped = crosses ? std::min(first, (gap.need - operators()) / block_operators_ + 1) : 0;
    for (Index block = 0; block < wrapped; ++block) visit(at(block));
    for (Index block = first; block < stop; ++block) visit(at(block));
  };
  around_offset_.assign(at(blocks) + 1, 0);
  for (const Gap& gap : gaps) each_block(gap, [&](std::size_t block) { ++around_offset_[block + 1]; });
  std::partial_sum(around_offset_.begin(), around_offset_.end(), around_offset_.begin());
  around_.resize(around_offset_.back());
  std::vector<std::size_t> next(around_offset_);
  for (std::size_t gap = 0; gap < gaps.size(); ++gap)
    each_block(gaps[gap], [&](std::size_t block) { around_[next[block]++] = static_cast<Index>(gap); });
}

bool Step::written_among(const std::vector<Index>& writers, Index since, Index until) {
  const auto next = std::upper_bound(writers.begin(), writers.end(), since);
  return next != writers.end() && *next < until;
}

bool Step::droppable(const Gap& gap) const {
  if (persistent(gap.tensor)) return false;
  const Index writer = first_writer[at(gap.tensor)];
  return writer != none && arrays.repeatable[at(writer)] != 0 && writers[at(gap.tensor)].size() == 1;
}

void Step::check() const {
  const std::size_t ops = arrays.latency_ns.size();
  const std::size_t count = arrays.size_bytes.size();
  const bool fits =
      ops > 0 && arrays.workspace_bytes.size() == ops && arrays.upload.size() == ops &&
      arrays.repeatable.size() == ops && arrays.offset.size() == ops + 1 && arrays.persistent.size() == count &&
      arrays.out_ns.size() == count && arrays.in_ns.size() == count && arrays.offset.front() == 0 &&
      at(arrays.offset.back()) == arrays.access.size() && std::is_sorted(arrays.offset.begin(), arrays.offset.end());
  if (!fits) throw std::invalid_argument("step arrays: lengths do not fit together");
  for (const Access& access : arrays.access) {
    if (access.tensor < 0 || at(access.tensor) >= count) throw std::invalid_argument("step arrays: unknown tensor");
  }
}

}  // namespace tensile::planner
