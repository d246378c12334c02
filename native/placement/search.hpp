// Places blocks within a capacity by search, or proves that they do not fit.
//
// In a placement whose blocks are all pushed down, each lies at 0 or on another one. So blocks are placed from below:
// each has a least offset, and one that rests on what is placed (or on 0) and under which no open block fits may lie
// right there. Where that has failed it lies higher, at the least on top of one of the open blocks that it meets:
// its least offset rises. At each moment the open blocks alive must fit above their least offsets (Jackson's bound
// for one machine with release times); where they do not, or a least offset is too high, the branch has failed.
//
// Every least offset has its reasons: the placements that it follows from. A failure's reasons say which placement
// to take back, however long ago, and what follows once it is taken back; distant stretches of time do not make each
// other search again. Blocks that failures are about are placed earlier. Restarts keep these weights and shuffle
// the rest, as times to a solution are heavy-tailed. All of it is seeded and counted in steps: equal inputs give
// equal results.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"

namespace tensile::placement {

// More blocks than this are not searched: a partial placement keeps reasons for each pair of them.
inline constexpr std::size_t most_searched = 1024;

enum class Verdict : std::uint8_t { placed, impossible, undecided };

struct Found {
  Verdict verdict;
  std::vector<Bytes> offsets;  // where placed
};

// Undecided after so many steps: partial placements that were looked at, and offsets that were raised.
Found search(const std::vector<Block>& blocks, Index cycle, Bytes capacity, std::int64_t steps);

}  // namespace tensile::placement
