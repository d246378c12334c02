// Remembers how far operators' allocations exceed their plan: at each position of a program the largest number of
// bytes that were in use at once and had no planned place.
//
// Only allocations without a planned place are noted, so a program that follows its plan has no entry here. Not
// thread-safe: `Script` (script.hpp) calls it under its lock.
#pragma once

#include <cstdint>
#include <vector>

namespace tensile {

// The largest number of bytes beyond the plan at one position. Each allocation counts rounded up to 512 bytes.
struct Excess {
  std::uint64_t position;
  std::uint64_t size_bytes;
};

class ExcessLog {
 public:
  static constexpr std::uint64_t unit_bytes = 512;  // the alignment that a GPU's kernels may rely on

  // Note an allocation. `address` is 0 if the arena had no room and the memory came from elsewhere: its release is
  // not reported, so it counts as in use until the position changes.
  void note(std::uint64_t position, std::uintptr_t address, std::uint64_t size_bytes);

  // Note the release of memory that may have been noted.
  void release(std::uintptr_t address);

  // Return the positions with an excess, in the order of time, and forget them. A position that the program has
  // passed more than once since the last call occurs more than once.
  std::vector<Excess> take();

 private:
  struct Piece {
    std::uintptr_t address;
    std::uint64_t size_bytes;
  };

  std::vector<Excess> largest_;
  std::vector<Piece> live_;  // noted at the present position and not released
  std::uint64_t position_ = ~std::uint64_t{0};
  std::uint64_t live_bytes_ = 0;
};

}  // namespace tensile
