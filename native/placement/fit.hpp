// First fit and best fit: place one block after the other into the space that the earlier blocks leave.
#pragma once

#include <vector>

#include "block.hpp"

namespace tensile::placement {

enum class Hole : std::uint8_t {
  first,  // the lowest hole that is large enough
  best,   // the smallest hole that is large enough
};

// Return the offset of every block. A block for which no hole is large enough is placed on top of all blocks that are
// alive with it.
std::vector<Bytes> fit(const std::vector<Block>& blocks, Index cycle, const std::vector<Index>& order, Hole hole);

}  // namespace tensile::placement
