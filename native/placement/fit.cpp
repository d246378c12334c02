#include "fit.hpp"

namespace tensile::placement {
namespace {

struct Placed {
  Block block;
  Bytes offset;
};

// The placed blocks are in the order of their offsets.
Bytes offset_of(const Block& block, const std::vector<Placed>& placed, Index cycle, Hole hole) {
  Bytes top = 0;
  Bytes found = 0;
  Bytes smallest = 0;  // of the holes that are large enough; 0 for none
  for (const Placed& one : placed) {
    if (!meet(one.block, block, cycle)) continue;
    const Bytes space = one.offset - top;
    if (space >= block.size) {
      if (hole == Hole::first) return top;
      if (smallest == 0 || space < smallest) {
        smallest = space;
        found = top;
      }
    }
    top = std::max(top, one.offset + one.block.size);
  }
  return smallest == 0 ? top : found;
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
                                        [](Bytes value, const Placed& one) { return value < one.offset; });
    placed.insert(place, {block, offset});
    offsets[at(index)] = offset;
  }
  return offsets;
}

}  // namespace tensile::placement
