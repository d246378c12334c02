// One job's bytes on the device, as its own process sees them.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "host_pool.hpp"
#include "ledger.hpp"

namespace tensile {

// Binds a ledger to one claim. The mutex is this process's own: it keeps the process's threads one behind the
// other, and nobody else ever waits for it.
class Account {
 public:
  // Refuses a claim whose epoch is over.
  Account(Ledger ledger, const Claim& claim);

  // What is used then.
  std::uint64_t move(std::uint64_t freed_bytes, std::uint64_t taken_bytes);
  void reset_high_water();
  SlotUsage usage() const;

  // Memory for a host pool, which is counted before it is taken and for as long as it is there. Outlives none of this.
  HostSupply counted(HostSupply supply);

  layout::Lane& out_lane() const noexcept { return ledger_.words().out; }
  layout::Lane& in_lane() const noexcept { return ledger_.words().in; }

 private:
  Ledger ledger_;
  Claim claim_;
  mutable std::mutex moving_;
};

}  // namespace tensile
