#include "free_ranges.hpp"

#include <algorithm>
#include <iterator>

#include "fault.hpp"

namespace tensile {

void FreeRanges::add(Range range) {
  auto after = by_offset_.lower_bound(range.offset);
  if (after != by_offset_.end() && after->first == range.end()) {
    range.size_bytes += after->second;
    after = erase(after);
  }
  if (after != by_offset_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == range.offset) {
      range = {before->first, before->second + range.size_bytes};
      erase(before);
    }
  }
  put(range);
}

void FreeRanges::take(Range range) {
  const std::optional<Range> whole = around(range);
  if (!whole) {
    throw Fault(Fault::Kind::invariant, text(range.size_bytes, " bytes at offset ", range.offset, " are not free"));
  }
  remove(range);
}

void FreeRanges::remove(Range range) {
  auto entry = by_offset_.upper_bound(range.offset);
  if (entry != by_offset_.begin()) --entry;
  while (entry != by_offset_.end() && entry->first < range.end()) {
    const Range free_range{entry->first, entry->second};
    if (free_range.end() <= range.offset) {
      ++entry;
      continue;
    }
    entry = erase(entry);
    if (free_range.offset < range.offset) put({free_range.offset, range.offset - free_range.offset});
    if (free_range.end() > range.end()) put({range.end(), free_range.end() - range.end()});
  }
}

std::optional<Range> FreeRanges::best_fit(std::uint64_t size_bytes) const {
  const auto smallest = by_size_.lower_bound({size_bytes, 0});
  if (smallest == by_size_.end()) return std::nullopt;
  return Range{smallest->second, smallest->first};
}

std::optional<Range> FreeRanges::around(Range range) const {
  const auto after = by_offset_.upper_bound(range.offset);
  if (after == by_offset_.begin()) return std::nullopt;
  const auto before = std::prev(after);
  const Range free_range{before->first, before->second};
  if (free_range.end() < range.end()) return std::nullopt;
  return free_range;
}

std::optional<Range> FreeRanges::last() const {
  if (by_offset_.empty()) return std::nullopt;
  return Range{by_offset_.rbegin()->first, by_offset_.rbegin()->second};
}

std::uint64_t FreeRanges::largest_bytes() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

void FreeRanges::put(Range range) {
  by_offset_.emplace(range.offset, range.size_bytes);
  by_size_.emplace(range.size_bytes, range.offset);
}

FreeRanges::ByOffset::iterator FreeRanges::erase(ByOffset::iterator entry) {
  by_size_.erase({entry->second, entry->first});
  return by_offset_.erase(entry);
}

}  // namespace tensile
