// The device's account of bytes and regions, shared by all processes that use the device: who may use how much, who
// does, and where.
//
// Atomics only, no lock: a process may be killed at any instruction and nobody waits for it. See ledger_layout.hpp.
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

  // Where the device's memory is: in the ledger's own file, which has no name ("") or lies, without a name too, in
  // a directory such as /dev/shm. Nothing: each process's memory is private, and the ledger only counts.
  std::optional<std::string> memory_directory = std::nullopt;

  // What the pinned host memory of all processes keeps to.
  std::uint64_t host_bytes = layout::max_bytes;
};

struct SlotUsage {
  std::uint32_t slot;
  std::uint64_t epoch;
  std::uint64_t pid;
  std::uint64_t granted_bytes;
  std::uint64_t held_bytes;  // its regions: more than its grant while those that it must give back hold something
  std::uint64_t used_bytes;
  std::uint64_t high_water_bytes;
  std::uint64_t host_bytes;  // of the pinned host pool
};

struct PoolUsage {
  std::uint64_t capacity_bytes;
  std::uint64_t region_bytes;
  std::uint64_t granted_bytes;  // all regions that are not free, those in quarantine too
  std::uint64_t used_bytes;
  std::uint64_t high_water_bytes;
  std::uint64_t host_bytes;
  std::uint64_t host_limit_bytes;
};

class Ledger {
 public:
  static Ledger create(const DeviceShape& shape);
  static Ledger attach(int fd);

  int fd() const noexcept { return memory_.fd(); }

  // --- the controller's: one thread at a time per slot ---

  Claim claim_slot(std::uint64_t pid);
  void set_pid(std::uint32_t slot, std::uint64_t pid);

  // Let a slot use this much, in whole regions; returns what it was rounded up to. Never grants more than the
  // capacity in all, never lowers a grant below what is in use. Regions that hold something come back when they
  // are empty and this is called again: until then `held_bytes` is above the grant.
  std::uint64_t grant(std::uint32_t slot, std::uint64_t size_bytes);

  // A job's process has died: its epoch is over and its regions are in quarantine. Should it still run, it is
  // refused from here on.
  void revoke_slot(std::uint32_t slot);

  // Take back whatever a job had, at whichever instruction its process ended, revoked before or not. Its regions
  // are anybody's now, so nothing that maps them may be left of it.
  void release_slot(std::uint32_t slot);

  // --- the trainer's: one thread at a time per claim (see Account) ---

  // Give back, then take, as one change; what is used then. The slot's use never passes its grant.
  std::uint64_t move(const Claim& claim, std::uint64_t freed_bytes, std::uint64_t taken_bytes);
  void reset_high_water(const Claim& claim);
  void check(const Claim& claim) const;

  // --- anybody's ---

  SlotUsage usage(std::uint32_t slot) const;
  PoolUsage usage() const;
  std::vector<SlotUsage> claimed_slots() const;

  // The words themselves, for lanes and for tests of what a killed process leaves behind.
  layout::Ledger& words() const noexcept { return *words_; }
  const Regions& regions() const noexcept { return regions_; }
  Regions& regions() noexcept { return regions_; }
  const HostShares& host_shares() const noexcept { return host_shares_; }
  HostShares& host_shares() noexcept { return host_shares_; }

 private:
  explicit Ledger(SharedMemory memory);

  layout::Slot& claimed(std::uint32_t slot) const;
  layout::Slot& live(const Claim& claim) const;
  void lower(std::uint32_t slot, std::uint64_t wanted_bytes);
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
