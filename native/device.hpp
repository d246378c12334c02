// A device as a trainer uses it. What a back end must provide, in plain integers and addresses: neither torch nor
// CUDA is known here. `Account` (bytes, shared by all processes) and `HostPool` serve every back end; what differs
// is where device memory is and what copies it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "host_pool.hpp"
#include "ledger.hpp"

namespace tensile {

// An address of device memory: for the emulated device one of this process's own.
using DeviceAddress = std::uint64_t;

// Names one copy. Tickets of one direction rise; those of the two directions never coincide.
using Ticket = std::uint64_t;

// A queue of the caller's own computation, as its back end names it (CUDA: a CUstream).
using StreamHandle = std::uintptr_t;

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Give bytes back, then take bytes, as one change. A memory fault beyond the grant changes nothing.
  virtual void move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) = 0;
  virtual SlotUsage usage() const = 0;
  virtual void reset_high_water() = 0;

  // Queue a copy and return at once; both ranges must outlive it. `host` is a buffer of this device's host pool.
  virtual Ticket copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) = 0;
  virtual Ticket copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) = 0;

  // Where the caller computes from now on. A copy starts after what is queued there when it is asked for. Without
  // such queues, where the calling thread itself computes, this says nothing.
  virtual void compute_on(StreamHandle /*stream*/) {}

  // What is computed from now on starts after that copy. The host goes on at once where computation is queued.
  virtual void compute_after(Ticket ticket) {
    while (!wait_for(ticket, std::chrono::hours(1))) {
    }
  }

  virtual bool done(Ticket ticket) const = 0;

  // False when the limit passes first.
  virtual bool wait_for(Ticket ticket, std::chrono::nanoseconds limit) = 0;
  virtual bool drain_for(std::chrono::nanoseconds limit) = 0;

  virtual std::byte* host_allocate(std::uint64_t size_bytes) = 0;

  // A buffer that a queued copy still uses is refused.
  virtual void host_free(const std::byte* host) = 0;
  virtual HostUsage host_usage() const = 0;

  // HostPool's, between two iterations: a buffer that a queued copy still uses is not moved but refused.
  virtual std::vector<HostMove> host_pack() = 0;
  virtual void host_fit(std::uint64_t free_bytes) = 0;

  // Finish what is queued; afterwards nothing can be copied.
  virtual void close() noexcept = 0;
};

}  // namespace tensile
