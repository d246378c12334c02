#include "machine_device.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "fault.hpp"

namespace tensile {
namespace {

// The lowest bit of a ticket is the lane; the other bits are the number of the copy on that lane.
constexpr Ticket out_ticket(std::uint64_t number) { return number << 1; }
constexpr Ticket in_ticket(std::uint64_t number) { return number << 1 | 1; }
constexpr bool is_in(Ticket ticket) { return (ticket & 1) != 0; }

}  // namespace

MachineDevice::MachineDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes,
                             const ArenaShape& arena, FarSide far_side)
    : account_(Ledger::attach(ledger.fd()), claim),
      arena_(ledger.words().header.memory_offset == 0 ? nullptr
                                                      : std::make_shared<Arena>(std::move(ledger), claim, arena)),
      pool_(host_pool_bytes, account_.counted(std::move(far_side.supply))),
      out_("tensile-out", LaneClock(account_.out_lane()), std::move(far_side.out)),
      in_("tensile-in", LaneClock(account_.in_lane()), std::move(far_side.in)) {}

void MachineDevice::move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) {
  const std::uint64_t used_bytes = account_.move(freed_bytes, taken_bytes);
  if (arena_) arena_->expect(used_bytes);
}

SlotUsage MachineDevice::usage() const { return account_.usage(); }

void MachineDevice::reset_high_water() {
  account_.reset_high_water();
  if (arena_) arena_->reset_high_water();
}

DeviceAddress MachineDevice::allocate(std::uint64_t size_bytes) {
  return reinterpret_cast<DeviceAddress>(arena().allocate(size_bytes));
}

DeviceAddress MachineDevice::allocate_at(std::uint64_t offset, std::uint64_t size_bytes) {
  return reinterpret_cast<DeviceAddress>(arena().allocate_at(offset, size_bytes));
}

void MachineDevice::free(DeviceAddress address) {
  const auto* start = reinterpret_cast<const std::byte*>(address);
  const std::lock_guard lock(copying_);
  if (const std::optional<Range> range = arena().around(start)) check_device({address, range->size_bytes});
  arena().free(start);
}

Arena& MachineDevice::arena() const {
  if (!arena_) {
    throw Fault(Fault::Kind::device, "the device has no memory of its own: each process's is private",
                "Create the ledger with memory.");
  }
  return *arena_;
}

const tensile_arena_hook& MachineDevice::hook() {
  // Allocations made through the hook can outlive this object, so the arena must too: it is never destroyed.
  static auto* const hooked_arenas = new std::vector<std::shared_ptr<Arena>>();
  static std::mutex mutex;
  const Arena& hooked = arena();
  const std::lock_guard lock(mutex);
  if (std::find(hooked_arenas->begin(), hooked_arenas->end(), arena_) == hooked_arenas->end()) {
    hooked_arenas->push_back(arena_);
  }
  return hooked.hook();
}

Ticket MachineDevice::copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) {
  const std::lock_guard lock(copying_);
  check_buffer(host, size_bytes);
  const std::uint64_t number = out_.submit(host, reinterpret_cast<const std::byte*>(device), size_bytes);
  uses_[host].out = number;
  add_pending(pending_out_, out_, {number, device, device + size_bytes});
  return out_ticket(number);
}

Ticket MachineDevice::copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) {
  const std::lock_guard lock(copying_);
  check_buffer(host, size_bytes);
  const std::uint64_t number = in_.submit(reinterpret_cast<std::byte*>(device), host, size_bytes);
  uses_[host].in = number;
  add_pending(pending_in_, in_, {number, device, device + size_bytes});
  return in_ticket(number);
}

bool MachineDevice::done(Ticket ticket) const { return (is_in(ticket) ? in_ : out_).done(ticket >> 1); }

bool MachineDevice::wait_for(Ticket ticket, std::chrono::nanoseconds limit) {
  return (is_in(ticket) ? in_ : out_).wait_for(ticket >> 1, limit);
}

bool MachineDevice::drain_for(std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  return out_.wait_for(out_.latest(), limit) && in_.wait_for(in_.latest(), end - std::chrono::steady_clock::now());
}

std::byte* MachineDevice::host_allocate(std::uint64_t size_bytes) { return pool_.allocate(size_bytes); }

void MachineDevice::host_free(const std::byte* host) {
  const std::lock_guard lock(copying_);
  const auto used = uses_.find(host);
  if (used != uses_.end()) {
    check_over(*used, "freed");
    uses_.erase(used);
  }
  pool_.free(host);
}

HostUsage MachineDevice::host_usage() const { return pool_.usage(); }

std::vector<HostMove> MachineDevice::host_pack() {
  const std::lock_guard lock(copying_);
  for (const auto& use : uses_) check_over(use, "moved");
  uses_.clear();
  return pool_.pack();
}

void MachineDevice::host_fit(std::uint64_t free_bytes) { pool_.resize_tail(free_bytes); }

void MachineDevice::close() noexcept {
  out_.close();
  in_.close();
}

// Add a queued copy, and drop those that are done: copies of one lane end in the order in which they were queued.
void MachineDevice::add_pending(std::deque<Pending>& pending, const Lane& lane, const Pending& copy) {
  while (!pending.empty() && lane.done(pending.front().number)) pending.pop_front();
  pending.push_back(copy);
}

void MachineDevice::check_device(Range range) const {
  const auto uses = [&](const Lane& lane) {
    return [&](const Pending& copy) {
      return copy.begin < range.end() && copy.end > range.offset && !lane.done(copy.number);
    };
  };
  if (std::any_of(pending_out_.begin(), pending_out_.end(), uses(out_)) ||
      std::any_of(pending_in_.begin(), pending_in_.end(), uses(in_))) {
    throw Fault(Fault::Kind::invariant,
                text("device memory at address ", range.offset, " is freed while a copy still uses it"));
  }
}

void MachineDevice::check_over(const std::pair<const std::byte* const, Uses>& use, const char* operation) const {
  if (out_.done(use.second.out) && in_.done(use.second.in)) return;
  throw Fault(Fault::Kind::invariant, text("host buffer ", static_cast<const void*>(use.first), " is ", operation,
                                           " while a copy still uses it"));
}

void MachineDevice::check_buffer(const std::byte* host, std::size_t size_bytes) const {
  const std::uint64_t buffer_bytes = pool_.size_bytes(host);
  if (size_bytes > buffer_bytes) {
    throw Fault(Fault::Kind::invariant,
                text("a copy of ", size_bytes, " bytes exceeds the host buffer of ", buffer_bytes, " bytes"));
  }
}

}  // namespace tensile
