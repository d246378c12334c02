#include "step.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tensile::planner {

Step::Step(StepArrays given) : arrays(std::move(given)) {
  check();
  const auto count = at(tensors());
  first_writer.assign(count, none);
  last_user.assign(count, none);
  writers.resize(count);
  gap_of_access.assign(arrays.access.size(), none);
  std::vector<std::vector<std::pair<Index, Index>>> users(count);  // (operator, access number)
  for (Index op = 0; op < operators(); ++op) {
    for (Index number = first_access(op); number < last_access(op); ++number) {
      const Access& one = access(number);
      if (one.writes) {
        if (first_writer[at(one.tensor)] == none) first_writer[at(one.tensor)] = op;
        writers[at(one.tensor)].push_back(op);
      }
      last_user[at(one.tensor)] = op;
      users[at(one.tensor)].emplace_back(op, number);
    }
  }
  for (Index tensor = 0; tensor < tensors(); ++tensor) {
    const auto& mine = users[at(tensor)];
    if (persistent(tensor)) base_bytes += arrays.size_bytes[at(tensor)];
    for (std::size_t k = 0; k < mine.size(); ++k) {
      const bool last = k + 1 == mine.size();
      if (last && !persistent(tensor)) break;
      const Index need = last ? mine[0].first + operators() : mine[k + 1].first;
      if (need - mine[k].first <= 1) continue;
      gap_of_access[at(mine[k].second)] = static_cast<Index>(gaps.size());
      gaps.push_back({tensor, mine[k].first, need});
    }
  }
}

bool Step::written_between(Index tensor, Index since, Index until) const {
  const auto& mine = writers[at(tensor)];
  const auto next = std::upper_bound(mine.begin(), mine.end(), since);
  return next != mine.end() && *next < until;
}

bool Step::droppable(const Gap& gap) const {
  if (persistent(gap.tensor)) return false;
  const Index writer = first_writer[at(gap.tensor)];
  return writer != none && arrays.repeatable[at(writer)] != 0 && writers[at(gap.tensor)].size() == 1;
}

void Step::check() const {
  const std::size_t ops = arrays.latency_ns.size();
  const std::size_t count = arrays.size_bytes.size();
  const bool fits = ops > 0 && arrays.workspace_bytes.size() == ops && arrays.upload.size() == ops &&
                    arrays.repeatable.size() == ops && arrays.offset.size() == ops + 1 &&
                    arrays.persistent.size() == count && arrays.out_ns.size() == count && arrays.in_ns.size() == count &&
                    arrays.offset.front() == 0 && at(arrays.offset.back()) == arrays.access.size() &&
                    std::is_sorted(arrays.offset.begin(), arrays.offset.end());
  if (!fits) throw std::invalid_argument("step arrays: lengths do not fit together");
  for (const Access& one : arrays.access) {
    if (one.tensor < 0 || at(one.tensor) >= count) throw std::invalid_argument("step arrays: unknown tensor");
  }
}

}  // namespace tensile::planner
