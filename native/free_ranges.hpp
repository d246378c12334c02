// Which parts of a range of addresses are free: the book that a host pool and an arena keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace tensile {

// Bytes from an offset on.
struct Range {
  std::uint64_t offset;
  std::uint64_t size_bytes;

  std::uint64_t end() const { return offset + size_bytes; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Free ranges by place and by size; neighbours are merged, so no two of them touch. Every operation takes time
// logarithmic in their number. Not for several threads at once.
class FreeRanges {
 public:
  // Nothing of it may be free already.
  void add(Range range);

  // It must lie within one free range.
  void take(Range range);

  // Whatever of it is free is so no longer.
  void remove(Range range);

  // The smallest free range that is as large, and of those the lowest: equal calls give equal places.
  std::optional<Range> best_fit(std::uint64_t size_bytes) const;

  // The free range that holds all of this one.
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
