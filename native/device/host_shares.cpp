#include "host_shares.hpp"

#include <chrono>
#include <thread>

#include "fault.hpp"

namespace tensile {

using layout::HostShare;

namespace {

// Processes that announced at once wait for different times, so that they try again one after the other.
constexpr std::uint32_t attempts = 16;
constexpr std::chrono::microseconds pause{50};

[[noreturn]] void throw_stale(const Claim& claim) {
  throw Fault(Fault::Kind::device,
              text("slot ", claim.slot, ": epoch ", claim.epoch, " is over, and so is its share of the host pool"),
              "The controller has taken this slot back; this process must end.");
}

}  // namespace

std::uint64_t HostShares::of(std::uint32_t slot) const { return HostShare::unpacked(words_[slot].load()).size_bytes; }

std::uint64_t HostShares::sum() const {
  std::uint64_t sum_bytes = 0;
  for (std::uint32_t slot = 0; slot < layout::slot_count; ++slot) sum_bytes += of(slot);
  return sum_bytes;
}

void HostShares::take(const Claim& claim, std::uint64_t size_bytes) {
  const std::uint64_t before_bytes = owned(claim);
  std::uint64_t others_bytes = 0;
  for (std::uint32_t attempt = 0; attempt < attempts; ++attempt) {
    if (size_bytes > limit_bytes_) break;
    if (!change(claim, before_bytes, before_bytes + size_bytes)) throw_stale(claim);
    const std::uint64_t sum_bytes = sum();
    if (sum_bytes <= limit_bytes_) return;
    if (!change(claim, before_bytes + size_bytes, before_bytes)) throw_stale(claim);
    others_bytes = sum_bytes - size_bytes - before_bytes;
    std::this_thread::sleep_for(pause * (1 + (claim.slot + attempt) % layout::slot_count));
  }
  throw Fault(Fault::Kind::memory,
              text("slot ", claim.slot, ": the host pool has no ", size_bytes, " bytes more: of its ", limit_bytes_,
                   " bytes this job has ", before_bytes, " and others have ", others_bytes),
              "Raise host_pool_bytes, or run fewer jobs at once on this device.");
}

void HostShares::give(const Claim& claim, std::uint64_t size_bytes) {
  const std::uint64_t before_bytes = owned(claim);
  if (size_bytes > before_bytes) {
    throw Fault(Fault::Kind::invariant, text("slot ", claim.slot, ": giving back ", size_bytes,
                                             " bytes of the host pool, of which it has ", before_bytes));
  }
  if (!change(claim, before_bytes, before_bytes - size_bytes)) throw_stale(claim);
}

void HostShares::begin(std::uint32_t slot, std::uint64_t epoch) { words_[slot] = HostShare{epoch, 0}.packed(); }

bool HostShares::change(const Claim& claim, std::uint64_t from_bytes, std::uint64_t to_bytes) {
  std::uint64_t word = HostShare{claim.epoch, from_bytes}.packed();
  return words_[claim.slot].compare_exchange_strong(word, HostShare{claim.epoch, to_bytes}.packed());
}

std::uint64_t HostShares::owned(const Claim& claim) const {
  const HostShare share = HostShare::unpacked(words_[claim.slot].load());
  if (share.packed() != HostShare{claim.epoch, share.size_bytes}.packed()) throw_stale(claim);
  return share.size_bytes;
}

}  // namespace tensile
