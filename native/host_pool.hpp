// Host memory that copies go to and come from, faulted in before it is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "free_ranges.hpp"
#include "shared_memory.hpp"

namespace tensile {

struct HostUsage {
  std::uint64_t limit_bytes;
  std::uint64_t used_bytes;  // sizes rounded up to 64 bytes
  std::uint64_t high_water_bytes;
  std::uint64_t resident_bytes;  // what has been faulted in so far; it stays for reuse
};

// One process's pool: the limit is the process's too, so a controller divides the machine's memory itself.
//
// All buffers lie in one range of addresses, as long as the limit, which gets memory in steps from its start. The
// smallest free range that fits is taken, so a size that comes back finds the range it left; neighbours merge, so
// the sizes of a new plan can use what the old one left. The lowest such range, so equal calls give equal places.
class HostPool {
 public:
  // Gives a range memory, whole pages of it, or raises a fault and leaves it as it was.
  using Supply = std::function<void(std::byte* address, std::size_t size_bytes)>;

  explicit HostPool(std::uint64_t limit_bytes, Supply supply = populate);

  // Get this much memory now, up to the limit, so that no later call has to.
  void prepare(std::uint64_t size_bytes);

  // Aligned to 64 bytes. Raises a memory fault when no free range under the limit is long enough.
  std::byte* allocate(std::uint64_t size_bytes);

  // Both raise an invariant fault for what is not a live buffer of this pool.
  void free(const std::byte* buffer);
  std::uint64_t size_bytes(const std::byte* buffer) const;

  HostUsage usage() const;

  // Where the range of addresses begins.
  std::uintptr_t begin() const noexcept { return reinterpret_cast<std::uintptr_t>(range_.address()); }

 private:
  bool grow(std::uint64_t needed_bytes);
  void supply(std::uint64_t end_bytes);
  std::unordered_map<const std::byte*, std::uint64_t>::const_iterator find(const std::byte* buffer) const;

  const std::uint64_t limit_bytes_;
  const Mapping range_;
  const Supply supply_;
  mutable std::mutex mutex_;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t high_water_bytes_ = 0;
  FreeRanges free_;
  std::unordered_map<const std::byte*, std::uint64_t> live_;
};

}  // namespace tensile
