// What copies go to and come from, host memory or a file, had before it is needed.
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
  std::uint64_t resident_bytes;  // what has been faulted in; it stays for reuse, until `fit` gives it back
};

// Where a pool's memory comes from and goes to: whole pages, at the end of what the pool has. `add` raises a fault
// where there is none and leaves all as it was. Buffers begin and end at multiples of `unit_bytes`. Where a supply gives
// no memory but something else that addresses of the pool stand for, nobody else can touch it there, and `move` copies
// a buffer down, over ranges that may overlap.
struct HostSupply {
  std::function<void(std::byte* address, std::size_t size_bytes)> add = populate;
  std::function<void(std::byte* address, std::size_t size_bytes)> remove = discard;
  std::function<void(std::byte* to, const std::byte* from, std::size_t size_bytes)> move = std::memmove;
  std::uint64_t unit_bytes = 64;  // a cache line, and what torch aligns its CPU tensors to
  bool is_memory = true;
};

// A live buffer's place before and after.
struct HostMove {
  std::byte* from;
  std::byte* to;
};

// One process's pool. The limit is the process's own; what all together keep to is its supply's affair (Account).
//
// All buffers lie in one range of addresses, as long as the limit, which gets memory in steps from its start. The
// smallest free range that fits is taken, so a size that comes back finds the range it left; neighbours merge, so
// the sizes of a new plan can use what the old one left. The lowest such range, so equal calls give equal places.
class HostPool {
 public:
  explicit HostPool(std::uint64_t limit_bytes, HostSupply supply = {});
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // Get this much memory now, up to the limit, so that no later call has to.
  void prepare(std::uint64_t size_bytes);

  // Aligned to the supply's unit. Raises a memory fault when no free range under the limit is long enough.
  std::byte* allocate(std::uint64_t size_bytes);

  // Both raise an invariant fault for what is not a live buffer of this pool.
  void free(const std::byte* buffer);
  std::uint64_t size_bytes(const std::byte* buffer) const;

  // Let the live buffers move down over the gaps between them, in the order in which they lie: all that is free is
  // then in one piece. Which of them moved. Nothing may be under way to or from any.
  std::vector<HostMove> pack();

  // Have just so much free behind the last live buffer, rounded up to a page: what is more goes back, what is missing
  // comes. Raises a memory fault where it cannot come.
  void fit(std::uint64_t free_bytes);

  HostUsage usage() const;

  // Where the range of addresses begins.
  std::uintptr_t begin() const noexcept { return reinterpret_cast<std::uintptr_t>(range_.address()); }

 private:
  bool grow(std::uint64_t needed_bytes);
  std::uint64_t tail_bytes() const;
  [[noreturn]] void throw_full(std::uint64_t size_bytes) const;
  void supply(std::uint64_t end_bytes);
  std::unordered_map<const std::byte*, std::uint64_t>::const_iterator find(const std::byte* buffer) const;

  const HostSupply supply_;
  const std::uint64_t limit_bytes_;
  const Mapping range_;
  const unsigned forks_;
  mutable std::mutex mutex_;
  std::uint64_t resident_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t high_water_bytes_ = 0;
  FreeRanges free_;
  std::unordered_map<const std::byte*, std::uint64_t> live_;
};

}  // namespace tensile
