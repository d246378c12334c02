// The account of one job's bytes on the device, used by the job's own process.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "host_pool.hpp"
#include "ledger.hpp"

namespace tensile {

// Binds a ledger to one claim. The mutex is private to this process: it serializes the process's threads, and no
// other process ever waits for it.
class Account {
 public:
  // Raises a device fault for a claim whose epoch is over.
  Account(Ledger ledger, const Claim& claim);

  // Give bytes back, then take bytes, as one change. Returns the bytes in use afterwards.
  std::uint64_t move(std::uint64_t freed_bytes, std::uint64_t taken_bytes);
  void reset_high_water();
  SlotUsage usage() const;

  // Wrap a host pool's supply so that the ledger counts its memory from before the memory is taken until after it is
  // given back. The returned supply must not outlive this account.
  HostSupply counted(HostSupply supply);

  layout::Lane& out_lane() const noexcept { return ledger_.words().out; }
  layout::Lane& in_lane() const noexcept { return ledger_.words().in; }

 private:
  Ledger ledger_;
  Claim claim_;
  mutable std::mutex moving_;
};

}  // namespace tensile
