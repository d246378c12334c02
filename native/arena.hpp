// One process's allocator in the regions of device memory that its job owns.
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
  std::uint64_t alignment_bytes = 64;  // a power of two: 64 is what torch aligns CPU tensors to, 512 CUDA's
  bool strict = false;                 // touching what is not allocated faults, or shows `Arena::poison`
};

// Memory that is mapped already, and that an arena itself never touches: a GPU's.
struct ForeignMemory {
  std::byte* begin;

  // Give these bytes, of whole regions, memory of their own, and nothing of another job's in it.
  std::function<void(Range)> back;

  // Take it away again.
  std::function<void(Range)> drop;
};

struct ArenaUsage {
  std::uint64_t owned_bytes;       // regions of this job
  std::uint64_t reserved_bytes;    // of those, what the system has set aside memory for
  std::uint64_t allocated_bytes;   // live allocations, their sizes rounded up to the alignment
  std::uint64_t requested_bytes;   // the same as they were asked for
  std::uint64_t high_water_bytes;  // of allocated_bytes
  std::uint64_t reserved_high_water_bytes;
  std::uint64_t largest_free_bytes;  // in one piece; regions not looked at yet count as not there
  std::uint64_t fallback_count;      // what the hook had no room for
  std::uint64_t unaccounted_bytes;   // the most by which requested_bytes passed what `expect` said
};

// All the device's memory is mapped, at one address for the arena's life, and an allocation is an offset in it. Free
// memory is one book over all owned regions, so an allocation may span neighbouring ones; the smallest free range
// that fits is taken and of those the lowest, so equal calls give equal places in equal regions.
//
// A region is engaged before the first thing is placed in it, and disengaged with the last: in between the controller
// cannot take it back, and all of it is backed by memory. Who frees says that the last use is over.
//
// Any thread may call. A forked child has neither the memory nor, by the hook, the allocator.
class Arena {
 public:
  static constexpr std::byte poison{0xDB};  // what strict mode leaves in memory that is freed, and gives out new

  // The ledger must have memory of its own, unless there is other. Strict mode is for the ledger's own.
  Arena(Ledger ledger, const Claim& claim, const ArenaShape& shape,
        std::optional<ForeignMemory> foreign = std::nullopt);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Raises a memory fault where no free range is long enough, `lost` where the system has no memory.
  std::byte* allocate(std::uint64_t size_bytes);

  // At an offset of the device, as planned. Raises an invariant fault where that is not free or not this job's.
  std::byte* allocate_at(std::uint64_t offset, std::uint64_t size_bytes);

  // From the start of an empty region of the job's on, and where that is not enough of its empty neighbours'; null
  // where there are none.
  std::byte* allocate_whole(std::uint64_t size_bytes);
  std::byte* allocate_region() { return allocate_whole(region_bytes_); }

  // Raises an invariant fault for what is no live allocation.
  void free(const std::byte* address);

  // The live allocation that holds this byte, where one does.
  std::optional<Range> around(const std::byte* address) const;

  std::byte* begin() const noexcept { return memory_.address(); }
  std::uint64_t size_bytes() const noexcept { return memory_.size_bytes(); }
  bool contains(const std::byte* address) const noexcept {
    return address >= begin() && address < begin() + size_bytes();
  }

  // Take the memory away, which is foreign, of all regions in which nothing lies.
  void trim();

  // From now on the job's account says that so much is used: what is requested beyond that is noted.
  void expect(std::uint64_t used_bytes) noexcept { expected_bytes_ = used_bytes; }

  ArenaUsage usage() const;

  // New marks from here on, also of what is unaccounted for.
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
  bool take_up(std::uint64_t region);
  void disengage(Range regions);
  void back(std::uint64_t region);
  void look();
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
  std::vector<bool> known_;            // regions that the book is kept of
  std::vector<std::uint32_t> placed_;  // allocations that touch a region
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
