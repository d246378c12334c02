// What is to be placed: blocks of bytes that are needed for a stretch of a cycle of moments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tensile::placement {

using Bytes = std::int64_t;
using Index = std::int32_t;

inline constexpr Index none = -1;

// Alive at moments first .. stop - 1, counted on from `first`: `stop` passes the end of the cycle where the block
// does.
struct Block {
  Index first;
  Index stop;
  Bytes size;
};

inline std::size_t at(Index index) { return static_cast<std::size_t>(index); }

// Whether both are alive at some moment of a cycle of so many.
inline bool meet(const Block& a, const Block& b, Index cycle) {
  return (a.first < b.stop && b.first < a.stop) || a.first + cycle < b.stop || b.first + cycle < a.stop;
}

// The first moment under an index that may have passed the end.
inline Index wrapped(Index moment, Index cycle) { return moment < cycle ? moment : moment - cycle; }

}  // namespace tensile::placement
