// The device's ledger of bytes and regions, shared by all processes that use the device: it records how much each job
// may use, how much it does use, and which regions it owns.
//
// The ledger uses atomics and no lock, so a process may be killed at any instruction without blocking another. See
// ledger_layout.hpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "host_shares.hpp"
#include "ledger_layout.hpp"
#include "regions.hpp"
#include "shared_memory.hpp"

namespace tensile {

struct DeviceShape {
  std::uint64_t capacity_bytes;
  std::uint64_t region_bytes;  // the unit of grants
  std::uint64_t out_bytes_per_s;
  std::uint64_t in_bytes_per_s;

  // The directory of the nameless file that holds the ledger and the device's memory, such as /dev/shm; empty for the
  // system's own nameless file (memfd). Without a value each process's memory is private, and the ledger only counts.
  std::optional<std::string> memory_directory = std::nullopt;

  // The limit on the pinned host memory of all processes together.
  std::uint64_t host_bytes = layout::max_bytes;
};

struct SlotUsage {
  std::uint32_t slot;
  std::uint64_t epoch;
  std::uint64_t pid;
  std::uint64_t granted_bytes;
  std::uint64_t held_bytes;  // of its regions: exceeds the grant while regions to be given back are not yet empty
  std::uint64_t used_bytes;
  std::uint64_t high_water_bytes;
  std::uint64_t host_bytes;  // its share of the pinned host pool
  std::uint64_t lent_bytes;  // of the regions that its round has lent to it
};

struct PoolUsage {
  std::uint64_t capacity_bytes;
  std::uint64_t region_bytes;
  std::uint64_t granted_bytes;  // of all regions with an owner or of a round, including those in quarantine
  std::uint64_t used_bytes;
  std::uint64_t high_water_bytes;
  std::uint64_t host_bytes;
  std::uint64_t host_limit_bytes;
  std::uint64_t absent_bytes;  // of regions without memory
  std::uint64_t pooled_bytes;  // of the round's regions that no member has
};

class Ledger {
 public:
  static Ledger create(const DeviceShape& shape);
  static Ledger attach(int fd);

  int fd() const noexcept { return memory_.fd(); }

  // --- for the controller: one thread at a time per slot ---

  Claim claim_slot(std::uint64_t pid);
  void set_pid(std::uint32_t slot, std::uint64_t pid);

  // Set a slot's grant, rounded up to whole regions; returns the rounded size. Raises a memory fault if all grants
  // together would exceed the capacity or if the grant would fall below the bytes in use. After a grant is lowered,
  // regions that are not empty stay with the slot until they are empty and this is called again: until then
  // `held_bytes` exceeds the grant.
  std::uint64_t grant(std::uint32_t slot, std::uint64_t size_bytes);

  // End a slot's epoch after its process has died, which puts its regions in quarantine. If the process still runs,
  // its calls are refused from now on.
  void revoke_slot(std::uint32_t slot);

  // Take back all that a job had, whatever instruction its process ended at, and whether or not it was revoked
  // before. Its regions become free for other jobs, so no process that maps them may be left of the job.
  void release_slot(std::uint32_t slot);

  // Make free regions the round's, until this many bytes of it are pooled or lent. Returns the bytes that then are:
  // fewer if too little is free. With 0, all that no member has become free; the bytes that members have remain.
  std::uint64_t set_pool(std::uint64_t size_bytes);

  // --- for the trainer: one thread at a time per claim (see Account) ---

  // Give bytes back, then take bytes, as one change; returns the bytes in use afterwards. Raises a memory fault if
  // the slot would exceed its grant and what its round has lent to it.
  std::uint64_t move(const Claim& claim, std::uint64_t freed_bytes, std::uint64_t taken_bytes);
  void reset_high_water(const Claim& claim);

  // Raise or lower what the claim's round has lent to it, in bytes of its lent regions.
  void add_lent(const Claim& claim, std::int64_t change_bytes);
  void check(const Claim& claim) const;

  // --- for any process ---

  SlotUsage usage(std::uint32_t slot) const;
  PoolUsage usage() const;
  std::vector<SlotUsage> claimed_slots() const;

  // The words themselves, for lanes and for tests of the state that a killed process leaves.
  layout::Ledger& words() const noexcept { return *words_; }
  const Regions& regions() const noexcept { return regions_; }
  Regions& regions() noexcept { return regions_; }
  const HostShares& host_shares() const noexcept { return host_shares_; }
  HostShares& host_shares() noexcept { return host_shares_; }

 private:
  explicit Ledger(SharedMemory memory);

  layout::Slot& claimed(std::uint32_t slot) const;
  layout::Slot& live(const Claim& claim) const;
  void lower(std::uint32_t slot, std::uint64_t target_bytes);
  std::uint64_t excess_bytes(std::uint32_t slot, std::uint64_t granted_bytes) const;
  std::uint64_t lent_bytes(std::uint32_t slot) const;
  [[noreturn]] void throw_full(const Claim& claim, std::uint64_t size_bytes) const;
  Regions::Wipe wipe() const;
  void publish(const Claim& claim, layout::Slot& record, const layout::Tally& before, const layout::Intent& intent);
  static void withdraw(layout::Slot& record, const layout::Tally& before, const layout::Intent& intent);
  void post(const Claim& claim, layout::Slot& record, const layout::Intent& intent);
  bool settle(std::uint64_t word);

  SharedMemory memory_;
  layout::Ledger* words_;
  Regions regions_;
  HostShares host_shares_;
};

}  // namespace tensile
