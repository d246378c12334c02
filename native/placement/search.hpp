// Places blocks within a capacity by a tree search, or proves that they do not fit.
//
// In a placement whose blocks are all pushed down, each block lies at offset 0 or directly on another block. So the
// search places blocks from below. Every open (not yet placed) block has a least offset. A block may be placed at its
// least offset if it rests there on a placed block or on 0, and if no open block fits under it. If that fails, the
// block must lie higher, at least on top of one of the open blocks that it meets (is alive with), so its least offset
// rises. At each moment the open blocks alive must fit above their least offsets (Jackson's bound for one machine
// with release times). If they do not fit, or if a least offset is too high, the branch fails.
//
// Every least offset has reasons: the placements that it follows from. The reasons of a failure identify the
// placement to take back, however long ago it was made, and what holds after that (conflict-directed backjumping). So
// failures in one interval of time do not repeat the search in an unrelated interval. Blocks that take part in
// failures gain weight and are placed earlier. The times to a solution are heavy-tailed, so the search restarts; a
// restart keeps the weights and shuffles the other criteria. The search is seeded and counts steps, so equal inputs
// give equal results.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"

namespace tensile::placement {

// The most blocks that are searched: a partial placement keeps reasons for every pair of blocks.
inline constexpr std::size_t most_searched = 1024;

enum class Verdict : std::uint8_t { placed, impossible, undecided };

struct Found {
  Verdict verdict;
  std::vector<Bytes> offsets;  // by block; empty unless the verdict is `placed`
};

// Search for at most `steps` steps, after which the verdict is `undecided`. Visiting a partial placement is one step,
// and so is raising a least offset.
Found search(const std::vector<Block>& blocks, Index cycle, Bytes capacity, std::int64_t steps);

}  // namespace tensile::placement
