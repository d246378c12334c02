// The Python module indb_tensile._placement: binds the placement of memory blocks.
//
// A block occupies the moments first .. stop - 1 of the cycle. `fit` returns the blocks' offsets (best fit if `best`,
// else first fit). `search` returns whether it decided, and the offsets: empty if it is undecided or placement is
// impossible.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "fit.hpp"
#include "search.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace tensile::placement;

namespace {

using Numbers = std::vector<Index>;

std::vector<Block> blocks(const Numbers& first, const Numbers& stop, const std::vector<Bytes>& size, Index cycle) {
  if (stop.size() != first.size() || size.size() != first.size()) throw std::invalid_argument("lengths differ");
  std::vector<Block> made;
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i] < 0 || first[i] >= cycle || stop[i] <= first[i] || stop[i] > first[i] + cycle || size[i] <= 0) {
      throw std::invalid_argument("a block is empty or out of the cycle");
    }
    made.push_back({first[i], stop[i], size[i]});
  }
  return made;
}

}  // namespace

NB_MODULE(_placement, module) {
  module.def(
      "fit",
      [](const Numbers& first, const Numbers& stop, const std::vector<Bytes>& size, Index cycle, const Numbers& order,
         bool best) {
        const auto all = blocks(first, stop, size, cycle);
        if (order.size() != all.size()) throw std::invalid_argument("lengths differ");
        for (const Index index : order) {
          if (index < 0 || at(index) >= all.size()) {
            throw std::invalid_argument("the order contains " + std::to_string(index) + ", which is no block");
          }
        }
        const nb::gil_scoped_release released;
        return fit(all, cycle, order, best ? Hole::best : Hole::first);
      },
      "first"_a, "stop"_a, "size"_a, "cycle"_a, "order"_a, "best"_a);
  module.def(
      "search",
      [](const Numbers& first, const Numbers& stop, const std::vector<Bytes>& size, Index cycle, Bytes capacity,
         std::int64_t steps) {
        const auto all = blocks(first, stop, size, cycle);
        const nb::gil_scoped_release released;
        const Found result = search(all, cycle, capacity, steps);
        return std::pair(result.verdict != Verdict::undecided, result.offsets);
      },
      "first"_a, "stop"_a, "size"_a, "cycle"_a, "capacity"_a, "steps"_a);
}
