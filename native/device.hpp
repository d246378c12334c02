// The interface of a device as a trainer uses it, which every back end implements. It consists of plain integers and
// addresses and depends on neither torch nor CUDA. Every back end uses `Account` (bytes, shared by all processes) and
// `HostPool`; back ends differ in the location of device memory and in the copy engines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "host_pool.hpp"
#include "ledger.hpp"

namespace tensile {

// An address of device memory. On the emulated device it is an address of this process.
using DeviceAddress = std::uint64_t;

// Identifies one copy. Tickets of one direction increase; tickets of different directions are never equal.
using Ticket = std::uint64_t;

// A queue of the caller's computation, as the back end names it (CUDA: a CUstream).
using StreamHandle = std::uintptr_t;

class Device {
 public:
  Device() = default;
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Give bytes back, then take bytes, as one change. Raises a memory fault if that would exceed the grant, and then
  // changes nothing.
  virtual void move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) = 0;
  virtual SlotUsage usage() const = 0;
  virtual void reset_high_water() = 0;

  // Queue a copy and return at once; both ranges must outlive it. `host` is a buffer of this device's host pool.
  virtual Ticket copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) = 0;
  virtual Ticket copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) = 0;

  // Set the queue on which the caller computes from now on. A copy starts after the work that is queued there when
  // the copy is requested. Does nothing on devices without queues, where the calling thread itself computes.
  virtual void compute_on(StreamHandle /*stream*/) {}

  // Make the computation that is requested from now on start after this copy. Where computation is queued the host
  // does not wait.
  virtual void compute_after(Ticket ticket) {
    while (!wait_for(ticket, std::chrono::hours(1))) {
    }
  }

  virtual bool done(Ticket ticket) const = 0;

  // Return false if the time limit passes first.
  virtual bool wait_for(Ticket ticket, std::chrono::nanoseconds limit) = 0;
  virtual bool drain_for(std::chrono::nanoseconds limit) = 0;

  virtual std::byte* host_allocate(std::uint64_t size_bytes) = 0;

  // Raises an invariant fault for a buffer that a queued copy still uses.
  virtual void host_free(const std::byte* host) = 0;
  virtual HostUsage host_usage() const = 0;

  // `HostPool::pack` and `HostPool::fit`, to be called between two iterations. Packing raises an invariant fault if a
  // queued copy still uses a buffer.
  virtual std::vector<HostMove> host_pack() = 0;
  virtual void host_fit(std::uint64_t free_bytes) = 0;

  // Finish all queued copies. No copy can be queued afterwards.
  virtual void close() noexcept = 0;
};

}  // namespace tensile
