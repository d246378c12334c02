// Random steps for the planner's tests, and an independent check of their layouts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "check.hpp"
#include "layout.hpp"
#include "step.hpp"

namespace tensile::planner {

class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint32_t seed) : state_(seed * 2654435761U + 1U) {}
  Index below(Index limit) {
    state_ ^= state_ << 13U;
    state_ ^= state_ >> 17U;
    state_ ^= state_ << 5U;
    return static_cast<Index>(state_ % static_cast<std::uint32_t>(limit));
  }

 private:
  std::uint32_t state_;
};

inline std::size_t at(Index index) { return static_cast<std::size_t>(index); }

// Return a step whose operators read some existing tensors and write a new tensor, or update an existing one.
inline StepArrays random_step(RandomNumbers& random) {
  StepArrays step;
  const auto add = [&](bool persistent) {
    step.size_bytes.push_back(1 + random.below(40));
    step.persistent.push_back(persistent ? 1 : 0);
    step.out_ns.push_back(1 + random.below(300));
    step.in_ns.push_back(1 + random.below(300));
    return static_cast<Index>(step.size_bytes.size()) - 1;
  };
  std::vector<Index> alive;
  for (Index k = random.below(4); k > 0; --k) alive.push_back(add(true));
  const Index operators = 1 + random.below(20);
  step.offset.push_back(0);
  for (Index op = 0; op < operators; ++op) {
    std::vector<Access> accesses;
    const auto touch = [&](Index tensor, bool writes) {
      const auto known =
          std::find_if(accesses.begin(), accesses.end(), [&](const Access& a) { return a.tensor == tensor; });
      if (known == accesses.end()) {
        accesses.push_back({tensor, writes});
      } else {
        known->writes |= writes;
      }
    };
    for (Index k = alive.empty() ? 0 : random.below(3); k > 0; --k)
      touch(alive[at(random.below(static_cast<Index>(alive.size())))], false);
    const bool updates = !alive.empty() && random.below(4) == 0;
    if (updates) touch(alive[at(random.below(static_cast<Index>(alive.size())))], true);
    const bool makes = random.below(3) != 0;
    if (makes) {
      alive.push_back(add(false));
      touch(alive.back(), true);
    }
    step.access.insert(step.access.end(), accesses.begin(), accesses.end());
    step.offset.push_back(static_cast<Index>(step.access.size()));
    step.latency_ns.push_back(random.below(500) + (op == 0 ? 1 : 0));
    step.workspace_bytes.push_back(random.below(5) == 0 ? random.below(60) : 0);
    step.upload.push_back(0);
    step.repeatable.push_back(makes && !updates && random.below(8) != 0 ? 1 : 0);
  }
  return step;
}

// Return the bytes at each position, counted for every tensor from its accesses and moves.
inline std::vector<Bytes> recounted(const Step& step, const Layout& layout) {
  const Index count = layout.length();
  std::vector<Bytes> load(at(count), 0);
  for (Index tensor = 0; tensor < step.tensors(); ++tensor) {
    const Bytes size = step.arrays.size_bytes[at(tensor)];
    std::vector<Index> births;
    std::vector<Index> uses;
    for (Index pos = 0; pos < count; ++pos) {
      const Index op = layout.order().op_at[at(pos)];
      for (Index k = step.first_access(op); k < step.last_access(op); ++k) {
        if (step.access(k).tensor != tensor) continue;
        uses.push_back(pos);
        if (step.access(k).writes && step.fresh(op, tensor)) births.push_back(pos);
      }
    }
    if (step.persistent(tensor)) {
      for (Bytes& bytes : load) bytes += size;
      continue;
    }
    for (std::size_t k = 0; k < births.size(); ++k) {
      const Index end = k + 1 < births.size() ? births[k + 1] : count;
      Index last = births[k];
      for (const Index use : uses)
        if (use >= births[k] && use < end) last = use;
      for (Index pos = births[k]; pos <= last; ++pos) load[at(pos)] += size;
    }
  }
  for (Index pos = 0; pos < count; ++pos)
    load[at(pos)] += step.arrays.workspace_bytes[at(layout.order().op_at[at(pos)])];
  for (const Move& move : layout.moves)
    for (Index pos = move.free; pos < move.back; ++pos)
      load[at(pos % count)] -= step.arrays.size_bytes[at(move.tensor)];
  return load;
}

inline void check_layout(const Step& step, const Layout& layout) {
  CHECK(recounted(step, layout) == layout.load_bytes);
  for (const Move& move : layout.moves)
    CHECK(move.after < move.free && move.free < move.back && move.back <= move.need &&
          move.need <= move.after + layout.length());
  std::vector<bool> ran(at(step.operators()), false);
  for (const Index op : layout.order().op_at) ran[at(op)] = true;
  CHECK(std::all_of(ran.begin(), ran.end(), [](bool has_run) { return has_run; }));
}

}  // namespace tensile::planner
