// One block after the other into the space that those before it leave: first fit and best fit.
#pragma once

#include <vector>

#include "block.hpp"

namespace tensile::placement {

enum class Hole : std::uint8_t {
  first,  // the lowest hole that is large enough
  best,   // the smallest hole that is large enough
};

// The offset of every block. Where no hole is large enough a block lies on top of those that it meets.
std::vector<Bytes> fit(const std::vector<Block>& blocks, Index cycle, const std::vector<Index>& order, Hole hole);

}  // namespace tensile::placement
