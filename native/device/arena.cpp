#include "arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fault.hpp"
#include "forks.hpp"

namespace tensile {
namespace {

Mapping map_memory(const Ledger& ledger) {
  const layout::Header& header = ledger.words().header;
  if (header.memory_offset == 0) {
    throw Fault(Fault::Kind::device, "the device has no memory of its own: each process's is private",
                "Create the ledger with memory.");
  }
  return map_unforked(ledger.fd(), {header.memory_offset, header.region_count * header.region_bytes});
}

}  // namespace

Arena::Arena(Ledger ledger, const Claim& claim, const ArenaShape& shape, std::optional<ForeignMemory> foreign)
    : ledger_(std::move(ledger)),
      claim_(claim),
      shape_(shape),
      region_bytes_(ledger_.words().header.region_bytes),
      forks_(forks()),
      foreign_(std::move(foreign)),
      memory_(foreign_ ? Mapping(foreign_->begin, ledger_.regions().count() * region_bytes_) : map_memory(ledger_)),
      hook_{this,
            &hook_allocate,
            &hook_release,
            reinterpret_cast<std::uintptr_t>(begin()),
            reinterpret_cast<std::uintptr_t>(begin()) + size_bytes(),
            region_bytes_,
            &hook_allocate_whole},
      known_(ledger_.regions().count()),
      placed_(ledger_.regions().count()) {
  ledger_.check(claim_);
  if (!std::has_single_bit(shape.alignment_bytes) || shape.alignment_bytes > page_bytes()) {
    throw Fault(Fault::Kind::invariant, text("an alignment of ", shape.alignment_bytes,
                                             " bytes is no power of two of at most a page of ", page_bytes()));
  }
  if (shape.strict && foreign_) throw Fault(Fault::Kind::invariant, "strict mode needs the ledger's own memory");
  if (shape.strict) protect({0, size_bytes()}, PROT_NONE);
}

// Foreign memory belongs to its owner. In a forked child other mappings may have taken the addresses.
Arena::~Arena() {
  if (foreign_ || forks() != forks_) memory_.abandon();
}

std::byte* Arena::allocate(std::uint64_t size_bytes) {
  if (size_bytes == 0) throw Fault(Fault::Kind::invariant, "an allocation of 0 bytes");
  const std::lock_guard lock(mutex_);
  const std::optional<std::uint64_t> offset = find(size_bytes);
  if (!offset) throw_no_room(size_bytes);
  return place(*offset, {aligned(size_bytes), size_bytes});
}

std::byte* Arena::allocate_at(std::uint64_t offset, std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const bool fits = size_bytes != 0 && size_bytes <= this->size_bytes() && offset <= this->size_bytes() - size_bytes;
  if (!fits || offset % shape_.alignment_bytes != 0) {
    throw Fault(Fault::Kind::invariant,
                text(size_bytes, " bytes at offset ", offset, ": the device has ", this->size_bytes(),
                     " bytes, and offsets are multiples of ", shape_.alignment_bytes));
  }
  const Range range{offset, aligned(size_bytes)};
  if (!free_.around(range)) refresh_free_list();
  if (!free_.around(range) || !engage(range)) {
    throw Fault(Fault::Kind::invariant, text("slot ", claim_.slot, ": ", size_bytes, " bytes at offset ", offset,
                                             " are not free in the regions of this job"));
  }
  return place(offset, {range.size_bytes, size_bytes});
}

std::byte* Arena::allocate_whole(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  refresh_free_list();
  const std::uint64_t taken_bytes = aligned(size_bytes);
  std::uint64_t empty_bytes = 0;  // length of the run of empty regions that ends with this region
  for (std::uint64_t region = 0; region < known_.size(); ++region) {
    empty_bytes = known_[region] && placed_[region] == 0 ? empty_bytes + region_bytes_ : 0;
    if (empty_bytes < taken_bytes) continue;
    const Range bytes{bytes_of(region).end() - empty_bytes, taken_bytes};
    if (engage(bytes)) return place(bytes.offset, {taken_bytes, size_bytes});
    empty_bytes = 0;
  }
  return nullptr;
}

void Arena::free(const std::byte* address) {
  const std::lock_guard lock(mutex_);
  const auto entry = contains(address) ? live_.find(static_cast<std::uint64_t>(address - begin())) : live_.end();
  if (entry == live_.end()) {
    throw Fault(Fault::Kind::invariant,
                text("address ", static_cast<const void*>(address), " is no allocation of the arena, or no longer"));
  }
  const Range range{entry->first, entry->second.size_bytes};
  allocated_bytes_ -= entry->second.size_bytes;
  requested_bytes_ -= entry->second.requested_bytes;
  live_.erase(entry);
  free_.add(range);
  if (shape_.strict) shut(range);
  disengage(regions_of(range));
}

std::optional<Range> Arena::around(const std::byte* address) const {
  if (!contains(address)) return std::nullopt;
  const auto offset = static_cast<std::uint64_t>(address - begin());
  const std::lock_guard lock(mutex_);
  const auto after = live_.upper_bound(offset);
  if (after == live_.begin()) return std::nullopt;
  const auto entry = std::prev(after);
  if (offset >= entry->first + entry->second.size_bytes) return std::nullopt;
  return Range{entry->first, entry->second.size_bytes};
}

ArenaUsage Arena::usage() const {
  const std::lock_guard lock(mutex_);
  return {.owned_bytes = ledger_.regions().held_count(claim_) * region_bytes_,
          .reserved_bytes = ledger_.regions().backed_count(claim_) * region_bytes_,
          .allocated_bytes = allocated_bytes_,
          .requested_bytes = requested_bytes_,
          .high_water_bytes = high_water_bytes_,
          .reserved_high_water_bytes = reserved_high_water_bytes_,
          .largest_free_bytes = free_.largest_bytes(),
          .fallback_count = fallback_count_,
          .unaccounted_bytes = unaccounted_bytes_};
}

void Arena::reset_high_water() {
  const std::lock_guard lock(mutex_);
  high_water_bytes_ = allocated_bytes_;
  reserved_high_water_bytes_ = ledger_.regions().backed_count(claim_) * region_bytes_;
  unaccounted_bytes_ = 0;
}

// Turn a range that is free and engaged into an allocation.
std::byte* Arena::place(std::uint64_t offset, const Live& live) {
  const Range range{offset, live.size_bytes};
  if (shape_.strict) open(range);
  live_.emplace(offset, live);
  free_.take(range);
  allocated_bytes_ += live.size_bytes;
  requested_bytes_ += live.requested_bytes;
  high_water_bytes_ = std::max(high_water_bytes_, allocated_bytes_);
  const std::uint64_t expected_bytes = expected_bytes_;
  if (requested_bytes_ > expected_bytes) {
    unaccounted_bytes_ = std::max(unaccounted_bytes_, requested_bytes_ - expected_bytes);
  }
  return begin() + offset;
}

std::uint64_t Arena::aligned(std::uint64_t size_bytes) const {
  return rounded_up(size_bytes, shape_.alignment_bytes);
}

// Engage the best fit among the regions that this job still owns. Every pass but the last either discovers that the
// job has lost a region or enters regions that it has gained.
std::optional<std::uint64_t> Arena::find(std::uint64_t size_bytes) {
  if (size_bytes > this->size_bytes()) return std::nullopt;
  const std::uint64_t taken_bytes = aligned(size_bytes);
  bool refreshed = false;
  for (;;) {
    const std::optional<Range> candidate = free_.best_fit(taken_bytes);
    if (candidate && engage({candidate->offset, taken_bytes})) return candidate->offset;
    if (candidate) continue;
    if (std::exchange(refreshed, true)) return std::nullopt;
    refresh_free_list();
  }
}

// Engage the regions under a free range. False if the controller has taken one of them back; the free list no longer
// contains that region then.
bool Arena::engage(Range range) {
  const Range regions = regions_of(range);
  std::uint64_t region = regions.offset;
  try {
    while (region < regions.end() && (placed_[region] != 0 || engage_region(region))) ++placed_[region++];
  } catch (...) {
    disengage({regions.offset, region - regions.offset});
    throw;
  }
  if (region == regions.end()) return true;
  disengage({regions.offset, region - regions.offset});
  return false;
}

// Engage a region before its first allocation, and back it with memory. False if the job no longer owns it.
bool Arena::engage_region(std::uint64_t region) {
  const std::optional<layout::Owner> owner = ledger_.regions().engage(claim_, region);
  if (!owner) {
    known_[region] = false;
    free_.remove(bytes_of(region));
    return false;
  }
  if (owner->backed) return true;
  try {
    back(region);
  } catch (...) {
    ledger_.regions().disengage(claim_, region);
    throw;
  }
  return true;
}

void Arena::disengage(Range regions) {
  for (std::uint64_t region = regions.offset; region < regions.end(); ++region) {
    if (--placed_[region] == 0) ledger_.regions().disengage(claim_, region);
  }
}

void Arena::trim() {
  const std::lock_guard lock(mutex_);
  for (std::uint64_t region = 0; region < placed_.size(); ++region) {
    if (placed_[region] != 0) continue;
    ledger_.regions().mark_unbacked(claim_, region);
    foreign_->drop(bytes_of(region));
  }
}

void Arena::back(std::uint64_t region) {
  const Range bytes = bytes_of(region);
  if (foreign_) {
    foreign_->back(bytes);
  } else {
    reserve(ledger_.fd(), {ledger_.words().header.memory_offset + bytes.offset, bytes.size_bytes});
  }
#ifdef MADV_POPULATE_WRITE
  // Fill this process's page tables at once where the kernel can. Faulting page by page later costs as much and
  // interrupts the computation.
  if (!shape_.strict && !foreign_) ::madvise(begin() + bytes.offset, bytes.size_bytes, MADV_POPULATE_WRITE);
#endif
  ledger_.regions().mark_backed(claim_, region);
  const std::uint64_t reserved_bytes = ledger_.regions().backed_count(claim_) * region_bytes_;
  reserved_high_water_bytes_ = std::max(reserved_high_water_bytes_, reserved_bytes);
}

// Bring the free list up to date with the ledger: enter regions that the job has gained, remove those it has lost.
void Arena::refresh_free_list() {
  for (std::uint64_t region = 0; region < ledger_.regions().count(); ++region) {
    const bool ours = ledger_.regions().is_of(claim_, region);
    if (ours == known_[region]) continue;
    known_[region] = ours;
    if (ours) {
      free_.add(bytes_of(region));
    } else {
      free_.remove(bytes_of(region));
    }
  }
}

Range Arena::bytes_of(std::uint64_t region) const { return {region * region_bytes_, region_bytes_}; }

Range Arena::regions_of(Range range) const {
  const std::uint64_t first = range.offset / region_bytes_;
  return {first, (range.end() - 1) / region_bytes_ - first + 1};
}

// Strict mode: make the pages that a range touches accessible again.
void Arena::open(Range range) {
  const std::uint64_t start = range.offset / page_bytes() * page_bytes();
  protect({start, rounded_up(range.end(), page_bytes()) - start}, PROT_READ | PROT_WRITE);
  std::memset(begin() + range.offset, static_cast<int>(poison), range.size_bytes);
}

// Strict mode, after the range was entered as free: fill the range with poison, and make the whole pages of the free
// range that now contains it inaccessible.
void Arena::shut(Range range) {
  std::memset(begin() + range.offset, static_cast<int>(poison), range.size_bytes);
  const Range whole = free_.around(range).value_or(range);
  const std::uint64_t start =
      std::max(rounded_up(whole.offset, page_bytes()), range.offset / page_bytes() * page_bytes());
  const std::uint64_t end =
      std::min(whole.end() / page_bytes() * page_bytes(), rounded_up(range.end(), page_bytes()));
  if (start < end) protect({start, end - start}, PROT_NONE);
}

void Arena::protect(Range range, int protection) const {
  if (::mprotect(begin() + range.offset, range.size_bytes, protection) != 0) {
    throw_system_fault("mprotect", text("strict mode, for ", range.size_bytes, " bytes at offset ", range.offset),
                       errno);
  }
}

void Arena::throw_no_room(std::uint64_t size_bytes) const {
  throw Fault(Fault::Kind::memory,
              text("slot ", claim_.slot, ": the arena has no ", size_bytes, " bytes in one piece: ", allocated_bytes_,
                   " of ", ledger_.regions().held_count(claim_) * region_bytes_,
                   " bytes in its regions are in use, and ", free_.largest_bytes(), " are free in one piece"),
              "Ask the controller for a larger grant, or follow a plan with a lower peak.");
}

void* Arena::hook_allocate(void* context, std::size_t size_bytes) noexcept {
  auto* arena = static_cast<Arena*>(context);
  if (forks() != arena->forks_ || size_bytes == 0) return nullptr;
  const std::lock_guard lock(arena->mutex_);
  try {
    const std::optional<std::uint64_t> offset = arena->find(size_bytes);
    if (offset) return arena->place(*offset, {arena->aligned(size_bytes), size_bytes});
  } catch (...) {  // the machine is out of memory; the caller's own allocator reports that
  }
  ++arena->fallback_count_;
  return nullptr;
}

void* Arena::hook_allocate_whole(void* context, std::size_t size_bytes) noexcept {
  auto* arena = static_cast<Arena*>(context);
  if (forks() != arena->forks_ || size_bytes == 0) return nullptr;
  try {
    return arena->allocate_whole(size_bytes);
  } catch (...) {
    return nullptr;
  }
}

int Arena::hook_release(void* context, void* address) noexcept {
  auto* arena = static_cast<Arena*>(context);
  if (forks() != arena->forks_) return 0;
  try {
    arena->free(static_cast<const std::byte*>(address));
    return 0;
  } catch (...) {
    return -1;
  }
}

}  // namespace tensile
