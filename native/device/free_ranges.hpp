// The free list of a range of addresses, used by the host pool and the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tensile {

// A half-open range of bytes that starts at an offset.
struct Range {
  std::uint64_t offset;
  std::uint64_t size_bytes;

  std::uint64_t end() const { return offset + size_bytes; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Free ranges, indexed by offset and by size. Neighbours are merged, so no two free ranges touch. Every operation
// takes time logarithmic in the number of free ranges. Not thread-safe.
class FreeRanges {
 public:
  // Mark a range as free. No part of it may be free already.
  void add(Range range);

  // Mark a range as used. Raises an invariant fault if it does not lie within one free range.
  void take(Range range);

  // Mark as used the parts of a range that are free.
  void remove(Range range);

  // Return the smallest free range of at least this size, and the lowest of equal ones, so equal calls give equal
  // places.
  std::optional<Range> best_fit(std::uint64_t size_bytes) const;

  // Return the free range that contains all of this range, if any.
  std::optional<Range> around(Range range) const;

  std::optional<Range> last() const;
  std::uint64_t largest_bytes() const;

 private:
  using ByOffset = std::map<std::uint64_t, std::uint64_t>;

  void put(Range range);
  ByOffset::iterator erase(ByOffset::iterator entry);

  ByOffset by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_size_;
};

}  // namespace tensile
