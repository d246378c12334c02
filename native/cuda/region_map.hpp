// A device's memory as regions that processes share: the broker creates them once, and all processes map them at the
// same offsets.
//
// A region is one physical allocation whose shareable handle is a file descriptor. Every process reserves one range
// of addresses for the whole capacity and maps region i at offset i * region_bytes, so an offset means the same byte
// everywhere, and the owner of a region can change without a driver call (ledger.hpp). The broker creates and holds
// the memory without a context; a process that maps the memory must have a current context.
//
// When other programs need memory, the broker releases regions that no job owns, and later creates them anew. Every
// process that maps regions follows these changes (region_listener.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/driver.hpp"
#include "cuda/region_changes.hpp"
#include "cuda/region_listener.hpp"
#include "shared_memory.hpp"

namespace tensile::cuda {

struct RegionShape {
  int device;  // the driver's ordinal
  std::uint64_t region_bytes;
  std::uint64_t count;

  std::uint64_t capacity_bytes() const noexcept { return region_bytes * count; }
};

// Raise a device fault if the size of a region is not a multiple of the device's granularity.
void check_shape(const Driver& driver, const RegionShape& shape);

// Owns one handle to physical memory. The memory exists while any process has a handle, a descriptor or a mapping.
class Region {
 public:
  // With `shared`, the region can be passed to another process.
  static Region create(const Driver& driver, const RegionShape& shape, std::uint64_t index, bool shared);
  static Region import(const Driver& driver, std::uint64_t index, int descriptor);
  static Region behind(const Driver& driver, Address mapped);

  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  Region(Region&& other) noexcept : driver_(other.driver_), handle_(std::exchange(other.handle_, 0)) {}
  Region& operator=(Region&&) = delete;

  AllocationHandle handle() const noexcept { return handle_; }
  FileDescriptor descriptor(std::uint64_t index) const;

 private:
  explicit Region(const Driver& driver) noexcept : driver_(driver) {}

  const Driver& driver_;
  AllocationHandle handle_ = 0;  // 0: none
};

// Creates and holds the regions, in the broker's process. One thread at a time may call, except that any number of
// threads may be in `greet`.
class RegionBroker {
 public:
  // Creates all regions.
  RegionBroker(const Driver& driver, const RegionShape& shape);
  RegionBroker(const RegionBroker&) = delete;
  RegionBroker& operator=(const RegionBroker&) = delete;

  const RegionShape& shape() const noexcept { return shape_; }

  // The regions that have memory, by number.
  std::vector<std::uint64_t> present() const;

  // Pass all regions that have memory to the process at the other end of a Unix stream socket, which calls
  // RegionMap::receive: `greet` and the first `add`. Raises a device fault if the peer ends.
  void send(int socket) const;

  // Wait until the peer is ready to map regions.
  void greet(int socket) const;

  // Make the peer map these regions, and wait until it has. The number of descriptors open at a time is bounded,
  // whatever the number of regions. Raises a device fault if the peer ends or cannot map them.
  void add(int socket, const std::vector<std::uint64_t>& regions) const;

  // Make the peer unmap these regions, and wait until it has.
  static void remove(int socket, const std::vector<std::uint64_t>& regions);

  // Give these regions memory again. Returns those that have it now: fewer if the device has too little memory.
  std::vector<std::uint64_t> create(const std::vector<std::uint64_t>& regions);

  // Give up the memory of these regions. The driver has it back once no process maps it.
  void release(const std::vector<std::uint64_t>& regions);

 private:
  const Region& region(std::uint64_t index) const;

  const Driver& driver_;
  const RegionShape shape_;
  std::vector<std::optional<Region>> regions_;
};

// One process's mapping of the whole capacity. Any thread may call.
class RegionMap {
 public:
  // Receive all of the broker's regions, map them and make them accessible; then follow the broker's changes on a
  // thread until the broker or this object ends. Needs a current context.
  static RegionMap receive(const Driver& driver, int device, int socket);

  // Reserve addresses only. The process then creates its own memory with `add`: for devices whose handles cannot be
  // passed on, and for debugging.
  static RegionMap reserve(const Driver& driver, const RegionShape& shape);

  ~RegionMap();
  RegionMap(const RegionMap&) = delete;
  RegionMap& operator=(const RegionMap&) = delete;
  RegionMap(RegionMap&& other) noexcept;
  RegionMap& operator=(RegionMap&&) = delete;

  // Back regions with memory of this process's own, or remove their memory; no queued work may still use it.
  void add(std::uint64_t first, std::uint64_t count);
  void remove(std::uint64_t first, std::uint64_t count);

  // Map at region `index` the memory that another map has at address `mapped`.
  void show(std::uint64_t index, Address mapped);

  // Write to every mapped region and wait for the result, which shows whether the device can use them. Needs a
  // context.
  void touch() const;

  // While the caller has this lock, the broker's changes wait: unmapping waits for the device, which the driver
  // refuses while a stream is recorded.
  std::unique_lock<std::mutex> hold_changes() const;

  const RegionShape& shape() const noexcept;
  Address base() const noexcept;

  // Return whether this process creates the memory itself.
  bool is_own() const noexcept;

  // Return whether all these bytes lie in mapped regions.
  bool holds(Address address, std::size_t size_bytes) const noexcept;

 private:
  class Mapped;

  explicit RegionMap(std::unique_ptr<Mapped> mapped);

  std::unique_ptr<Mapped> mapped_;  // null after the object was moved from; the listener's thread uses it too
  std::unique_ptr<RegionListener> listener_;  // ends first
};

}  // namespace tensile::cuda
