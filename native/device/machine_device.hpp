// A device in this machine's own memory: a file that all processes map, whose regions are owned as the shared ledger
// says. Two threads act as copy engines. If the ledger has no memory, the memory of each process is private and the
// ledger only counts bytes. The back ends (EmulatedDevice, CpuDevice) define the far side of the links and their
// pace.
#pragma once

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "account.hpp"
#include "arena.hpp"
#include "device.hpp"
#include "host_pool.hpp"
#include "lane.hpp"

namespace tensile {

// The far side of a device's links: the memory of the host pool, and the engines that copy there and back.
struct FarSide {
  HostSupply supply;
  Lane::Engine out;
  Lane::Engine in;
};

class MachineDevice : public Device {
 public:
  void move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) override;
  SlotUsage usage() const override;
  void reset_high_water() override;

  // Memory in the job's regions; see Arena. `free` raises an invariant fault while a queued copy uses the memory.
  DeviceAddress allocate(std::uint64_t size_bytes);
  DeviceAddress allocate_at(std::uint64_t offset, std::uint64_t size_bytes);
  void free(DeviceAddress address);

  // Raises a device fault if the ledger has no memory.
  Arena& arena() const;

  // An allocator for code that does not depend on this class. Its allocations may be used and released until the
  // process ends, even after this device is destroyed.
  const tensile_arena_hook& hook();

  Ticket copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) override;
  Ticket copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) override;
  bool done(Ticket ticket) const override;
  bool wait_for(Ticket ticket, std::chrono::nanoseconds limit) override;
  bool drain_for(std::chrono::nanoseconds limit) override;

  std::byte* host_allocate(std::uint64_t size_bytes) override;
  void host_free(const std::byte* host) override;
  HostUsage host_usage() const override;
  std::vector<HostMove> host_pack() override;
  void host_fit(std::uint64_t free_bytes) override;

  void close() noexcept override;

 protected:
  MachineDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes, const ArenaShape& arena,
                FarSide far_side);

  // The start of the host pool's range of addresses.
  const std::byte* pool_begin() const noexcept { return reinterpret_cast<const std::byte*>(pool_.begin()); }

  // Raises an invariant fault if there is no live buffer at this address or it is smaller than this.
  void check_buffer(const std::byte* host, std::size_t size_bytes) const;

 private:
  // The latest copy in each direction that uses a host buffer.
  struct Uses {
    std::uint64_t out = 0;
    std::uint64_t in = 0;
  };

  // The device memory that one queued copy uses.
  struct Pending {
    std::uint64_t number;
    DeviceAddress begin;
    DeviceAddress end;
  };

  void check_device(Range range) const;
  static void add_pending(std::deque<Pending>& pending, const Lane& lane, const Pending& copy);
  void check_over(const std::pair<const std::byte* const, Uses>& use, const char* operation) const;

  Account account_;
  std::shared_ptr<Arena> arena_;
  HostPool pool_;
  std::mutex copying_;
  std::unordered_map<const std::byte*, Uses> uses_;
  std::deque<Pending> pending_out_;
  std::deque<Pending> pending_in_;
  Lane out_;  // the lanes come last: their threads end before the memory that they copy is released
  Lane in_;
};

}  // namespace tensile
