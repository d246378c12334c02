// The input of placement: blocks of bytes, each alive for an interval of a cycle of moments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tensile::placement {

using Bytes = std::int64_t;
using Index = std::int32_t;

inline constexpr Index none = -1;

// A block that is alive at moments first .. stop - 1. If it lives on past the end of the cycle, `stop` exceeds the
// length of the cycle.
struct Block {
  Index first;
  Index stop;
  Bytes size;
};

inline std::size_t at(Index index) { return static_cast<std::size_t>(index); }

// Return whether both blocks are alive at some moment of a cycle of this length.
inline bool meet(const Block& a, const Block& b, Index cycle) {
  return (a.first < b.stop && b.first < a.stop) || a.first + cycle < b.stop || b.first + cycle < a.stop;
}

// Return the moment of the cycle for an index that may have passed the end once.
inline Index wrapped(Index moment, Index cycle) { return moment < cycle ? moment : moment - cycle; }

}  // namespace tensile::placement
