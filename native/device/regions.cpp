#include "regions.hpp"

#include <algorithm>
#include <utility>

#include "fault.hpp"

namespace tensile {

using layout::Owner;
using layout::RegionState;

namespace {

constexpr bool holds(const Claim& claim, const Owner& owner) {
  return (owner.state == RegionState::empty || owner.state == RegionState::used) && owner.slot == claim.slot &&
         owner.epoch == claim.epoch;
}

constexpr bool is_lent_to(const Claim& claim, const Owner& owner) {
  return owner.state == RegionState::lent && owner.slot == claim.slot && owner.epoch == claim.epoch;
}

// Whether the word's slot and epoch are those of a job.
constexpr bool has_owner(const Owner& owner) {
  return owner.state == RegionState::empty || owner.state == RegionState::used ||
         owner.state == RegionState::wiping || owner.state == RegionState::lent;
}

// Add a region to a list of runs: it extends the last run if it is adjacent to that run, and otherwise begins a new
// one.
void append(std::vector<Range>& runs, std::uint64_t region) {
  if (!runs.empty() && runs.back().end() == region) {
    ++runs.back().size_bytes;
  } else if (!runs.empty() && region + 1 == runs.back().offset) {
    --runs.back().offset;
    ++runs.back().size_bytes;
  } else {
    runs.push_back({region, 1});
  }
}

}  // namespace

template <typename Condition>
std::uint64_t Regions::count_if(Condition condition) const {
  return static_cast<std::uint64_t>(std::count_if(
      words_, words_ + count_, [&](const layout::Word& word) { return condition(Owner::unpacked(word.load())); }));
}

std::uint64_t Regions::free_count() const {
  return count_if([](const Owner& owner) { return owner.state == RegionState::free; });
}

std::uint64_t Regions::absent_count() const {
  return count_if([](const Owner& owner) { return owner.state == RegionState::absent; });
}

std::uint64_t Regions::held_count(const Claim& claim) const {
  return count_if([&](const Owner& owner) { return holds(claim, owner); });
}

std::uint64_t Regions::backed_count(const Claim& claim) const {
  return count_if([&](const Owner& owner) { return holds(claim, owner) && owner.backed; });
}

bool Regions::is_of(const Claim& claim, std::uint64_t region) const { return holds(claim, owner(region)); }

bool Regions::hand_out(const Claim& claim, std::uint64_t count) {
  if (free_count() < count) return false;
  std::vector<std::uint64_t> taken;
  while (taken.size() < count) {
    const std::optional<Range> run = best_run(claim, count - taken.size());
    if (!run) {  // a concurrent call has taken free regions: undo
      for (const std::uint64_t region : taken) {
        replace(region, {RegionState::empty, false, claim.slot, claim.epoch}, Owner{});
      }
      return false;
    }
    for (std::uint64_t region = run->offset; region < run->end(); ++region) {
      if (!replace(region, Owner{}, {RegionState::empty, false, claim.slot, claim.epoch})) break;
      taken.push_back(region);
    }
  }
  return true;
}

std::uint64_t Regions::take_back(const Claim& claim, std::uint64_t count, const Wipe& wipe) {
  std::vector<Range> wiping;
  std::uint64_t taken = 0;
  for (std::uint64_t region = count_; region-- > 0 && taken < count;) {
    const Owner now = owner(region);
    if (!holds(claim, now) || now.state != RegionState::empty) continue;
    if (!replace(region, now, {RegionState::wiping, now.backed, now.slot, now.epoch})) continue;
    append(wiping, region);
    ++taken;
  }
  free(wiping, wipe);
  return taken;
}

void Regions::take_all(std::uint32_t slot, const Wipe& wipe) {
  std::vector<Range> wiping;
  std::vector<Range> lent;
  for (std::uint64_t region = 0; region < count_; ++region) {
    Owner now = owner(region);
    while (has_owner(now) && now.slot == slot) {
      if (replace(region, now, {RegionState::wiping, now.backed, now.slot, now.epoch})) {
        append(now.state == RegionState::lent ? lent : wiping, region);
        break;
      }
      now = owner(region);
    }
  }
  free(wiping, wipe);
  free(lent, wipe, {RegionState::pooled});
}

std::uint64_t Regions::pool(std::uint64_t count) {
  std::uint64_t pooled = 0;
  for (std::uint64_t region = 0; region < count_ && pooled < count; ++region) {
    if (replace(region, Owner{}, {RegionState::pooled})) ++pooled;
  }
  return pooled;
}

std::uint64_t Regions::unpool(const Wipe& wipe) {
  std::vector<Range> wiping;
  std::uint64_t lent = 0;
  for (std::uint64_t region = 0; region < count_; ++region) {
    const Owner now = owner(region);
    if (now.state == RegionState::lent) ++lent;
    if (now.state != RegionState::pooled) continue;
    if (replace(region, now, {RegionState::wiping, now.backed, 0, 0})) {
      append(wiping, region);
    } else {
      ++lent;
    }
  }
  free(wiping, wipe);
  return lent;
}

std::uint64_t Regions::pooled_count() const {
  return count_if([](const Owner& owner) { return owner.state == RegionState::pooled; });
}

std::uint64_t Regions::round_count() const {
  return count_if(
      [](const Owner& owner) { return owner.state == RegionState::pooled || owner.state == RegionState::lent; });
}

std::uint64_t Regions::lent_count(const Claim& claim) const {
  return count_if([&](const Owner& owner) { return is_lent_to(claim, owner); });
}

std::optional<Owner> Regions::borrow(const Claim& claim, std::uint64_t region) {
  const Owner now = owner(region);
  const Owner lent{RegionState::lent, now.backed, claim.slot, claim.epoch};
  if (now.state != RegionState::pooled || !replace(region, now, lent)) return std::nullopt;
  return lent;
}

// Fails if the member's epoch is over and the controller has taken the region.
void Regions::give_back(const Claim& claim, std::uint64_t region) {
  const Owner now = owner(region);
  if (is_lent_to(claim, now)) replace(region, now, {RegionState::pooled, now.backed, 0, 0});
}

std::vector<std::uint64_t> Regions::withdraw(std::uint64_t count) {
  std::vector<std::uint64_t> withdrawn;
  for (std::uint64_t region = count_; region-- > 0 && withdrawn.size() < count;) {
    if (replace(region, Owner{}, {RegionState::absent, false, 0, 0})) withdrawn.push_back(region);
  }
  return withdrawn;
}

void Regions::restore(const std::vector<std::uint64_t>& regions) {
  for (const std::uint64_t region : regions) {
    if (region >= count_ || !replace(region, {RegionState::absent, false, 0, 0}, Owner{})) {
      throw Fault(Fault::Kind::invariant, text("region ", region, " gets memory again and was not absent"));
    }
  }
}

std::optional<Owner> Regions::engage(const Claim& claim, std::uint64_t region) {
  const Owner now = owner(region);
  if (!holds(claim, now)) return std::nullopt;
  if (now.state == RegionState::used) return now;
  const Owner used{RegionState::used, now.backed, now.slot, now.epoch};
  if (!replace(region, now, used)) return std::nullopt;
  return used;
}

// This and `disengage` only fail if the owner's epoch is over: no other process changes a region in use.
void Regions::mark_backed(const Claim& claim, std::uint64_t region) {
  const RegionState state = owner(region).state == RegionState::lent ? RegionState::lent : RegionState::used;
  replace(region, {state, false, claim.slot, claim.epoch}, {state, true, claim.slot, claim.epoch});
}

void Regions::disengage(const Claim& claim, std::uint64_t region) {
  const Owner now = owner(region);
  if (holds(claim, now)) replace(region, now, {RegionState::empty, now.backed, now.slot, now.epoch});
}

// Fails if the controller took the region back meanwhile.
void Regions::mark_unbacked(const Claim& claim, std::uint64_t region) {
  replace(region, {RegionState::empty, true, claim.slot, claim.epoch},
          {RegionState::empty, false, claim.slot, claim.epoch});
}

bool Regions::replace(std::uint64_t region, const Owner& expected, const Owner& desired) {
  std::uint64_t word = expected.packed();
  return words_[region].compare_exchange_strong(word, desired.packed());
}

std::vector<Range> Regions::free_runs() const {
  std::vector<Range> runs;
  for (std::uint64_t region = 0; region < count_; ++region) {
    if (words_[region].load() == 0) append(runs, region);
  }
  return runs;
}

// Return the regions to hand out next, at most `max_count`. Runs that are long enough come first: preferably one
// adjacent to the claim's regions, otherwise the shortest, so that long runs remain. If no run is long enough, the
// longest is used.
std::optional<Range> Regions::best_run(const Claim& claim, std::uint64_t max_count) const {
  std::optional<Range> best;
  std::pair<int, std::uint64_t> best_rank{};
  for (const Range& run : free_runs()) {
    const std::uint64_t size = std::min(run.size_bytes, max_count);
    const bool follows = run.offset > 0 && is_of(claim, run.offset - 1);
    const bool precedes = run.end() < count_ && is_of(claim, run.end());
    std::pair<int, std::uint64_t> rank{2, count_ - size};
    if (size == max_count) rank = {follows || precedes ? 0 : 1, run.size_bytes};
    if (best && rank >= best_rank) continue;
    best_rank = rank;
    best = Range{precedes && !follows ? run.end() - size : run.offset, size};
  }
  return best;
}

void Regions::free(const std::vector<Range>& wiping, const Wipe& wipe, const Owner& then) {
  for (const Range& run : wiping) {
    wipe(run);
    for (std::uint64_t region = run.offset; region < run.end(); ++region) words_[region] = then.packed();
  }
}

}  // namespace tensile
