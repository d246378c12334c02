#include "lent_regions.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "fault.hpp"
#include "futex.hpp"

namespace tensile {

LentRegions::LentRegions(Ledger ledger, const Claim& claim, std::uint32_t places, std::unique_ptr<PlaceMemory> memory)
    : ledger_(std::move(ledger)),
      claim_(claim),
      region_bytes_(ledger_.words().header.region_bytes),
      memory_(std::move(memory)),
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
    // The epoch is over, or the device is lost, so the controller takes the regions back when this process has ended.
  }
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

// The allowance is lowered first, so the job's use never exceeds the regions that it has. If the device cannot tell
// that the last use is over, all places stay this job's.
void LentRegions::give(const std::vector<std::uint32_t>& places) {
  std::vector<std::uint32_t> returned;
  std::copy_if(places.begin(), places.end(), std::back_inserter(returned),
               [this](std::uint32_t number) { return place(number).held; });
  if (returned.empty()) return;
  if (memory_) memory_->finish(returned);
  for (const std::uint32_t number : returned) {
    ledger_.add_lent(claim_, -static_cast<std::int64_t>(region_bytes_));
    place(number).held = false;
    --held_;
    ledger_.regions().give_back(claim_, *place(number).region);
  }
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
    if (memory_) prepare(wanted, number, region, owner->backed);
    ledger_.add_lent(claim_, static_cast<std::int64_t>(region_bytes_));
  } catch (...) {
    ledger_.regions().give_back(claim_, region);
    throw;
  }
  wanted = {region, true};
  ++held_;
  return true;
}

void LentRegions::prepare(Place& wanted, std::uint32_t number, std::uint64_t region, bool backed) {
  if (!backed) {
    memory_->back(region);
    ledger_.regions().mark_backed(claim_, region);
  }
  if (wanted.region == region) return;
  wanted.region.reset();  // if mapping fails, the place has no region
  memory_->map(number, region);
  wanted.region = region;
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
