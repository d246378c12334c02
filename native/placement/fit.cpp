#include "fit.hpp"

namespace tensile::placement {
namespace {

struct Placed {
  Block block;
  Bytes offset;
};

// Return the offset for a block. `placed` is sorted by offset.
Bytes offset_of(const Block& block, const std::vector<Placed>& placed, Index cycle, Hole hole) {
  Bytes top = 0;
  Bytes best_offset = 0;
  Bytes smallest = 0;  // size of the smallest hole that is large enough; 0 if there is none yet
  for (const Placed& other : placed) {
    if (!meet(other.block, block, cycle)) continue;
    const Bytes space = other.offset - top;
    if (space >= block.size) {
      if (hole == Hole::first) return top;
      if (smallest == 0 || space < smallest) {
        smallest = space;
        best_offset = top;
      }
    }
    top = std::max(top, other.offset + other.block.size);
  }
  return smallest == 0 ? top : best_offset;
}

}  // namespace

std::vector<Bytes> fit(const std::vector<Block>& blocks, Index cycle, const std::vector<Index>& order, Hole hole) {
  std::vector<Bytes> offsets(blocks.size());
  std::vector<Placed> placed;
  placed.reserve(blocks.size());
  for (const Index index : order) {
    const Block& block = blocks[at(index)];
    const Bytes offset = offset_of(block, placed, cycle, hole);
    const auto place = std::upper_bound(placed.begin(), placed.end(), offset,
                                        [](Bytes value, const Placed& other) { return value < other.offset; });
    placed.insert(place, {block, offset});
    offsets[at(index)] = offset;
  }
  return offsets;
}

}  // namespace tensile::placement
