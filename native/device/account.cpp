#include "account.hpp"

namespace tensile {

Account::Account(Ledger ledger, const Claim& claim) : ledger_(std::move(ledger)), claim_(claim) {
  ledger_.check(claim_);
}

std::uint64_t Account::move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) {
  const std::lock_guard lock(moving_);
  return ledger_.move(claim_, freed_bytes, taken_bytes);
}

void Account::reset_high_water() {
  const std::lock_guard lock(moving_);
  ledger_.reset_high_water(claim_);
}

HostSupply Account::counted(HostSupply supply) {
  HostShares& shares = ledger_.host_shares();
  HostSupply counted = supply;
  counted.add = [this, &shares, add = std::move(supply.add)](std::byte* address, std::size_t size_bytes) {
    ledger_.check(claim_);
    shares.take(claim_, size_bytes);
    try {
      add(address, size_bytes);
    } catch (...) {
      shares.give(claim_, size_bytes);
      throw;
    }
  };
  counted.remove = [this, &shares, remove = std::move(supply.remove)](std::byte* address, std::size_t size_bytes) {
    remove(address, size_bytes);
    shares.give(claim_, size_bytes);
  };
  return counted;
}

SlotUsage Account::usage() const {
  const std::lock_guard lock(moving_);
  ledger_.check(claim_);
  return ledger_.usage(claim_.slot);
}

}  // namespace tensile
