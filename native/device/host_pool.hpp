// The host pool: the host memory or swap file that tensors are swapped out to and in from, acquired before it is
// needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "free_ranges.hpp"
#include "shared_memory.hpp"

namespace tensile {

struct HostUsage {
  std::uint64_t limit_bytes;
  std::uint64_t used_bytes;  // sizes rounded up to the supply's unit
  std::uint64_t high_water_bytes;
  std::uint64_t
      resident_bytes;  // memory acquired from the supply; the pool keeps it until `resize_tail` gives it back
};

// The source of a pool's memory. The pool acquires and gives back whole pages at its end. `add` raises a fault if
// there is no memory, and then changes nothing. Buffers begin and end at multiples of `unit_bytes`. `move` copies a
// buffer to a lower address; the two ranges may overlap. If `is_memory` is false, addresses of the pool stand for
// offsets of a file, and only the supply's owner can access it. A page has one or more units.
struct HostSupply {
  std::function<void(std::byte* address, std::size_t size_bytes)> add = populate;
  std::function<void(std::byte* address, std::size_t size_bytes)> remove = discard;
  std::function<void(std::byte* to, const std::byte* from, std::size_t size_bytes)> move = std::memmove;
  std::uint64_t unit_bytes = 64;  // a cache line, and the alignment of torch's CPU tensors
  bool is_memory = true;
};

// The address of a live buffer before and after `HostPool::pack`.
struct HostMove {
  std::byte* from;
  std::byte* to;
};

// The host pool of one process. The limit applies to this process; the supply enforces the limit on all processes
// together (Account::counted).
//
// All buffers lie in one range of addresses as long as the limit. The range acquires memory from its start, some
// megabytes at a time. The
// pool takes the smallest free range that fits, so a recurring size finds the range that it left. Neighbouring free
// ranges merge, so the buffers of a new plan can use the space of the old plan's. Among equal ranges the pool takes
// the lowest, so equal calls give equal places.
class HostPool {
 public:
  explicit HostPool(std::uint64_t limit_bytes, HostSupply supply = {});
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Acquire this much memory now, up to the limit, so that no later call has to.
  void prepare(std::uint64_t size_bytes);

  // Aligned to the supply's unit. Raises a memory fault when no free range under the limit is long enough.
  std::byte* allocate(std::uint64_t size_bytes);

  // Both raise an invariant fault if the address is not that of a live buffer of this pool.
  void free(const std::byte* buffer);
  std::uint64_t size_bytes(const std::byte* buffer) const;

  // Move the live buffers down over the gaps between them, in the order of their addresses, so that all free space is
  // contiguous. Returns the buffers that moved. No copy to or from any buffer may be under way.
  std::vector<HostMove> pack();

  // Give memory back or acquire memory until exactly this much is free behind the last live buffer, rounded up to a
  // page. Raises a memory fault if the memory cannot be acquired.
  void resize_tail(std::uint64_t free_bytes);

  HostUsage usage() const;

  // The start of the pool's range of addresses.
  std::uintptr_t begin() const noexcept { return reinterpret_cast<std::uintptr_t>(range_.address()); }

 private:
  bool grow(std::uint64_t needed_bytes);
  std::uint64_t tail_bytes() const;
  [[noreturn]] void throw_full(std::uint64_t size_bytes) const;
  void extend_to(std::uint64_t end_bytes);
  std::unordered_map<const std::byte*, std::uint64_t>::const_iterator find(const std::byte* buffer) const;

  const HostSupply supply_;
  const std::uint64_t limit_bytes_;
  const Mapping range_;
  const unsigned forks_;
  mutable std::mutex mutex_;
  std::uint64_t acquired_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t high_water_bytes_ = 0;
  FreeRanges free_;
  std::unordered_map<const std::byte*, std::uint64_t> live_;
};

}  // namespace tensile
