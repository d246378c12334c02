#include "lent_regions.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "fault.hpp"
#include "futex.hpp"

namespace tensile {

LentRegions::LentRegions(Ledger ledger, const Claim& claim, std::uintptr_t begin, std::uint32_t places)
    : ledger_(std::move(ledger)),
      claim_(claim),
      begin_(ledger_.words().header.memory_offset == 0 ? 0 : begin),
      region_bytes_(ledger_.words().header.region_bytes),
      places_(places) {
  ledger_.check(claim_);
}

LentRegions::~LentRegions() {
  std::vector<std::uint32_t> held;
  for (std::uint32_t number = 0; number < places_.size(); ++number) {
    if (places_[number].held) held.push_back(number);
  }
  try {
    give(held);
  } catch (const Fault&) {
    // The epoch is over, so the controller takes the regions back.
  }
  const bool mapped =
      std::any_of(places_.begin(), places_.end(), [](const Place& p) { return p.region.has_value(); });
  if (begin_ == 0 || !mapped) return;
  ::mmap(reinterpret_cast<void*>(begin_), places_.size() * region_bytes_, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool LentRegions::take_for(const std::vector<std::uint32_t>& places, std::chrono::nanoseconds limit) {
  const auto stop = std::chrono::steady_clock::now() + limit;
  layout::Pool& pool = ledger_.words().pool;
  for (;;) {
    const std::uint64_t seen = pool.returned.load();
    ledger_.check(claim_);
    // Each place first tries its own region, so that none takes that of another.
    for (const std::uint32_t number : places) take_again(place(number), number);
    const bool complete = std::all_of(places.begin(), places.end(), [&](std::uint32_t number) {
      return place(number).held || take_any(place(number), number);
    });
    if (complete) return true;
    const auto left = stop - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    wait_for_change(pool.returned, seen, left);
  }
}

// The allowance is lowered first, so the job's use never exceeds the regions that it has.
void LentRegions::give(const std::vector<std::uint32_t>& places) {
  bool any = false;
  for (const std::uint32_t number : places) {
    Place& given = place(number);
    if (!given.held) continue;
    ledger_.add_lent(claim_, -static_cast<std::int64_t>(region_bytes_));
    given.held = false;
    --held_;
    ledger_.regions().give_back(claim_, *given.region);
    any = true;
  }
  if (!any) return;
  ++ledger_.words().pool.returned;
  wake_all(ledger_.words().pool.returned);
}

void LentRegions::take_again(Place& wanted, std::uint32_t number) {
  if (!wanted.held && wanted.region) take_region(wanted, number, *wanted.region);
}

// Take the next region that nobody has.
bool LentRegions::take_any(Place& wanted, std::uint32_t number) {
  const std::uint64_t count = ledger_.regions().count();
  for (std::uint64_t tried = 0; tried < count; ++tried) {
    const std::uint64_t region = (next_ + tried) % count;
    if (!take_region(wanted, number, region)) continue;
    next_ = region + 1;
    return true;
  }
  return false;
}

bool LentRegions::take_region(Place& wanted, std::uint32_t number, std::uint64_t region) {
  const std::optional<layout::Owner> owner = ledger_.regions().borrow(claim_, region);
  if (!owner) return false;
  try {
    if (begin_ != 0 && !owner->backed) {
      reserve(ledger_.fd(), {ledger_.words().header.memory_offset + region * region_bytes_, region_bytes_});
      ledger_.regions().mark_backed(claim_, region);
    }
    if (begin_ != 0 && wanted.region != region) map(number, region);
    ledger_.add_lent(claim_, static_cast<std::int64_t>(region_bytes_));
  } catch (...) {
    ledger_.regions().give_back(claim_, region);
    throw;
  }
  wanted = {region, true};
  ++held_;
  return true;
}

void LentRegions::map(std::uint32_t number, std::uint64_t region) {
  auto* const address = reinterpret_cast<void*>(begin_ + number * region_bytes_);
  const std::uint64_t offset = ledger_.words().header.memory_offset + region * region_bytes_;
  if (::mmap(address, region_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ledger_.fd(),
             static_cast<off_t>(offset)) == MAP_FAILED) {
    throw_system_fault("mmap", text("mapping region ", region, " of a round"), errno);
  }
  ::madvise(address, region_bytes_, MADV_DONTFORK);
#ifdef MADV_POPULATE_WRITE
  ::madvise(address, region_bytes_, MADV_POPULATE_WRITE);  // otherwise the first access to each page faults
#endif
  ++mapped_count_;
}

LentRegions::Place& LentRegions::place(std::uint32_t number) {
  if (number >= places_.size()) {
    throw Fault(Fault::Kind::invariant,
                text("place ", number, ": this part of the block has ", places_.size(), " places"));
  }
  return places_[number];
}

}  // namespace tensile
