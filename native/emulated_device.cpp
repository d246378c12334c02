#include "emulated_device.hpp"

#include <utility>

#include "fault.hpp"

namespace tensile {
namespace {

// The lowest bit of a ticket says which lane, the others which of its copies.
constexpr Ticket out_ticket(std::uint64_t number) { return number << 1; }
constexpr Ticket in_ticket(std::uint64_t number) { return number << 1 | 1; }
constexpr bool is_in(Ticket ticket) { return (ticket & 1) != 0; }

}  // namespace

EmulatedDevice::EmulatedDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes,
                               std::size_t chunk_bytes)
    : account_(std::move(ledger), claim),
      pool_(host_pool_bytes),
      out_("tensile-out", LaneClock(account_.out_lane()), chunk_bytes),
      in_("tensile-in", LaneClock(account_.in_lane()), chunk_bytes) {}

void EmulatedDevice::move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) {
  account_.move(freed_bytes, taken_bytes);
}

SlotUsage EmulatedDevice::usage() const { return account_.usage(); }

void EmulatedDevice::reset_high_water() { account_.reset_high_water(); }

Ticket EmulatedDevice::copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) {
  const std::lock_guard lock(copying_);
  check_host(host, size_bytes);
  const std::uint64_t number = out_.submit(host, reinterpret_cast<const std::byte*>(device), size_bytes);
  uses_[host].out = number;
  return out_ticket(number);
}

Ticket EmulatedDevice::copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) {
  const std::lock_guard lock(copying_);
  check_host(host, size_bytes);
  const std::uint64_t number = in_.submit(reinterpret_cast<std::byte*>(device), host, size_bytes);
  uses_[host].in = number;
  return in_ticket(number);
}

bool EmulatedDevice::done(Ticket ticket) const { return (is_in(ticket) ? in_ : out_).done(ticket >> 1); }

bool EmulatedDevice::wait_for(Ticket ticket, std::chrono::nanoseconds limit) {
  return (is_in(ticket) ? in_ : out_).wait_for(ticket >> 1, limit);
}

bool EmulatedDevice::drain_for(std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  return out_.wait_for(out_.latest(), limit) && in_.wait_for(in_.latest(), end - std::chrono::steady_clock::now());
}

std::byte* EmulatedDevice::host_allocate(std::uint64_t size_bytes) { return pool_.allocate(size_bytes); }

void EmulatedDevice::host_free(const std::byte* host) {
  const std::lock_guard lock(copying_);
  const auto used = uses_.find(host);
  if (used != uses_.end()) {
    if (!out_.done(used->second.out) || !in_.done(used->second.in)) {
      throw Fault(Fault::Kind::invariant,
                  text("host buffer ", static_cast<const void*>(host), " is freed while a copy still uses it"));
    }
    uses_.erase(used);
  }
  pool_.free(host);
}

HostUsage EmulatedDevice::host_usage() const { return pool_.usage(); }

void EmulatedDevice::close() noexcept {
  out_.close();
  in_.close();
}

void EmulatedDevice::check_host(const std::byte* host, std::size_t size_bytes) const {
  const std::uint64_t buffer_bytes = pool_.size_bytes(host);
  if (size_bytes > buffer_bytes) {
    throw Fault(Fault::Kind::invariant, text("a copy of ", size_bytes, " bytes and a host buffer of ", buffer_bytes));
  }
}

}  // namespace tensile
