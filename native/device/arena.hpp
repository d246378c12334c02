// The allocator of one process in the regions of device memory that its job owns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arena_hook.h"
#include "free_ranges.hpp"
#include "ledger.hpp"
#include "shared_memory.hpp"

namespace tensile {

struct ArenaShape {
  std::uint64_t alignment_bytes = 64;  // a power of two: torch aligns CPU tensors to 64, CUDA tensors to 512
  bool strict = false;                 // touching memory that is not allocated faults, or reads `Arena::poison`
};

// Memory that is already mapped and that the arena itself never reads or writes, such as a GPU's.
struct ForeignMemory {
  std::byte* begin;

  // Back these bytes, which are whole regions, with memory that holds nothing of another job.
  std::function<void(Range)> back;

  // Take the memory behind these bytes away again.
  std::function<void(Range)> drop;
};

struct ArenaUsage {
  std::uint64_t owned_bytes;       // in regions that this job owns
  std::uint64_t reserved_bytes;    // part of owned_bytes for which the operating system has set memory aside
  std::uint64_t allocated_bytes;   // live allocations, their sizes rounded up to the alignment
  std::uint64_t requested_bytes;   // live allocations, their sizes as requested
  std::uint64_t high_water_bytes;  // highest value of allocated_bytes
  std::uint64_t reserved_high_water_bytes;
  std::uint64_t largest_free_bytes;  // contiguous; without regions that the free list does not cover yet
  std::uint64_t fallback_count;      // requests through the hook that the arena had no room for
  std::uint64_t unaccounted_bytes;   // largest excess of requested_bytes over the bytes given to `expect`
};

// All the device's memory is mapped at one address for the arena's lifetime, and an allocation is an offset in it.
// One free list covers all owned regions, so an allocation may span neighbouring regions. The arena takes the
// smallest free range that fits, and the lowest of equal ones, so equal calls give equal places in equal regions.
//
// The arena engages a region before it places the first allocation there, and disengages the region when the last
// allocation is freed. In between, the controller cannot take the region back, and memory backs all of it. A caller
// of `free` states that the last use of the memory is over.
//
// Any thread may call. A forked child has neither the memory nor, through the hook, the allocator.
class Arena {
 public:
  static constexpr std::byte poison{0xDB};  // strict mode fills memory with it when the memory is freed and allocated

  // Without `foreign` memory the ledger must have memory. Strict mode works only on the ledger's memory.
  Arena(Ledger ledger, const Claim& claim, const ArenaShape& shape,
        std::optional<ForeignMemory> foreign = std::nullopt);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Raises a memory fault if no free range is long enough, and a `lost` fault if the operating system has no memory.
  std::byte* allocate(std::uint64_t size_bytes);

  // Allocate at a planned offset of the device. Raises an invariant fault if the range is not free or not this job's.
  std::byte* allocate_at(std::uint64_t offset, std::uint64_t size_bytes);

  // Allocate from the start of an empty region of the job; a larger allocation continues in the empty regions that
  // follow. Null if there is no such run of empty regions.
  std::byte* allocate_whole(std::uint64_t size_bytes);
  std::byte* allocate_region() { return allocate_whole(region_bytes_); }

  // Raises an invariant fault if the address is not that of a live allocation.
  void free(const std::byte* address);

  // The live allocation that contains this byte, if any.
  std::optional<Range> around(const std::byte* address) const;

  std::byte* begin() const noexcept { return memory_.address(); }
  std::uint64_t size_bytes() const noexcept { return memory_.size_bytes(); }
  bool contains(const std::byte* address) const noexcept {
    return address >= begin() && address < begin() + size_bytes();
  }

  // Take away the foreign memory of all regions that hold no allocation.
  void trim();

  // Set the bytes that the job's account says are in use. The arena records how far requests exceed them.
  void expect(std::uint64_t used_bytes) noexcept { expected_bytes_ = used_bytes; }

  ArenaUsage usage() const;

  // Restart all high-water marks and `unaccounted_bytes` from the present state.
  void reset_high_water();

  const tensile_arena_hook& hook() const noexcept { return hook_; }

 private:
  struct Live {
    std::uint64_t size_bytes;
    std::uint64_t requested_bytes;
  };

  std::byte* place(std::uint64_t offset, const Live& live);
  std::uint64_t aligned(std::uint64_t size_bytes) const;
  std::optional<std::uint64_t> find(std::uint64_t size_bytes);
  bool engage(Range range);
  bool engage_region(std::uint64_t region);
  void disengage(Range regions);
  void back(std::uint64_t region);
  void refresh_free_list();
  Range bytes_of(std::uint64_t region) const;
  Range regions_of(Range range) const;
  void open(Range range);
  void shut(Range range);
  void protect(Range range, int protection) const;
  [[noreturn]] void throw_no_room(std::uint64_t size_bytes) const;

  static void* hook_allocate(void* context, std::size_t size_bytes) noexcept;
  static void* hook_allocate_whole(void* context, std::size_t size_bytes) noexcept;
  static int hook_release(void* context, void* address) noexcept;

  Ledger ledger_;
  const Claim claim_;
  const ArenaShape shape_;
  const std::uint64_t region_bytes_;
  const unsigned forks_;
  const std::optional<ForeignMemory> foreign_;
  Mapping memory_;
  tensile_arena_hook hook_;

  mutable std::mutex mutex_;
  FreeRanges free_;
  std::vector<bool> known_;            // by region: whether the free list covers it
  std::vector<std::uint32_t> placed_;  // by region: the allocations that touch it
  std::map<std::uint64_t, Live> live_;
  std::uint64_t allocated_bytes_ = 0;
  std::uint64_t requested_bytes_ = 0;
  std::uint64_t high_water_bytes_ = 0;
  std::uint64_t reserved_high_water_bytes_ = 0;
  std::uint64_t fallback_count_ = 0;
  std::atomic<std::uint64_t> expected_bytes_{0};
  std::uint64_t unaccounted_bytes_ = 0;
};

}  // namespace tensile
