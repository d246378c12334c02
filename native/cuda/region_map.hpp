// A device's memory as regions that processes share: made once by the broker, mapped at the same offsets by all.
//
// A region is one physical allocation with a file descriptor as its handle. Every process reserves one range of
// addresses for the whole capacity and maps region i at offset i * region_bytes of it, so an offset means the same
// byte everywhere, and whose a region is can change without any call of the driver (ledger.hpp). A broker makes and
// holds the memory without a context; who maps it has made one current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver.hpp"
#include "shared_memory.hpp"

namespace tensile::cuda {

struct RegionShape {
  int device;  // the driver's ordinal
  std::uint64_t region_bytes;
  std::uint64_t count;

  std::uint64_t capacity_bytes() const noexcept { return region_bytes * count; }
};

// Raises a device fault for what the device's granularity does not divide.
void check_shape(const Driver& driver, const RegionShape& shape);

// Owns one handle to physical memory, which lives on while any process has a handle, a descriptor or a mapping.
class Region {
 public:
  // `shared`: it can be handed to another process.
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

// The broker's end.
class RegionBroker {
 public:
  RegionBroker(const Driver& driver, const RegionShape& shape);
  RegionBroker(const RegionBroker&) = delete;
  RegionBroker& operator=(const RegionBroker&) = delete;

  const RegionShape& shape() const noexcept { return shape_; }

  // Hand all regions to the process at the other end of a Unix stream socket, which calls RegionMap::receive. Few
  // descriptors are open at a time, however many regions there are. A peer that ends meanwhile is a device fault.
  void send(int socket) const;

 private:
  const Driver& driver_;
  const RegionShape shape_;
  std::vector<Region> regions_;
};

// A process's view of the whole capacity.
class RegionMap {
 public:
  // All of the broker's regions, mapped and accessible.
  static RegionMap receive(const Driver& driver, int device, int socket);

  // Addresses only: where handles cannot be passed on, and to debug, a process makes its own memory with `add`.
  static RegionMap reserve(const Driver& driver, const RegionShape& shape);

  ~RegionMap();
  RegionMap(const RegionMap&) = delete;
  RegionMap& operator=(const RegionMap&) = delete;
  RegionMap(RegionMap&& other) noexcept;
  RegionMap& operator=(RegionMap&&) = delete;

  // Give regions of this process's own memory, or take it away again; nothing queued may still use it.
  void add(std::uint64_t first, std::uint64_t count);
  void remove(std::uint64_t first, std::uint64_t count);

  // Show at region `index` of these addresses the memory that another map has at `mapped`.
  void show(std::uint64_t index, Address mapped);

  // Write to every region and wait until that is done: whether the device can really use them. Needs a context.
  void touch() const;

  const RegionShape& shape() const noexcept { return shape_; }
  Address base() const noexcept { return base_; }

  // Whether the memory is this process's own.
  bool is_own() const noexcept { return own_; }

  // Whether all these bytes lie in regions that are mapped.
  bool holds(Address address, std::size_t size_bytes) const noexcept;

 private:
  RegionMap(const Driver& driver, const RegionShape& shape);

  Address at(std::uint64_t index) const noexcept { return base_ + index * shape_.region_bytes; }
  void map(std::uint64_t index, const Region& region);
  void allow(std::uint64_t first, std::uint64_t count);

  const Driver& driver_;
  const RegionShape shape_;
  bool own_ = true;
  Address base_ = 0;  // 0: moved from
  std::vector<bool> mapped_;
};

}  // namespace tensile::cuda
