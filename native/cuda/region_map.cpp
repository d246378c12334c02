#include "cuda/region_map.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "descriptors.hpp"
#include "ledger_layout.hpp"

namespace tensile::cuda {
namespace {

constexpr std::size_t batch = 64;  // descriptors open at a time on either side; the usual limit of a process is 1,024

// The broker's first message. Its version prevents processes of different versions from misreading each other.
struct Greeting {
  std::uint64_t magic;
  std::uint64_t version;
  std::uint64_t region_bytes;
  std::uint64_t count;
};

constexpr std::uint64_t greeting_magic = 0x534e4f4947455254;  // "TREGIONS" as bytes in memory
constexpr std::uint64_t greeting_version = 2;
constexpr std::byte taken{'t'};

AllocationProperties properties(int device, bool shared) {
  AllocationProperties made{};
  made.type = AllocationType::pinned;
  made.handle_types = shared ? HandleType::file_descriptor : HandleType::none;
  made.location = {LocationType::device, device};
  return made;
}

std::string named(std::uint64_t index) { return text("region ", index); }

RegionShape received_shape(int device, int socket) {
  Greeting greeting{};
  receive_bytes(socket, std::as_writable_bytes(std::span(&greeting, 1)));
  if (greeting.magic != greeting_magic || greeting.version != greeting_version) {
    throw Fault(Fault::Kind::device,
                text("the other end of the socket is no broker of regions, version ", greeting_version),
                "Run controller and trainers from one installation.");
  }
  return {device, greeting.region_bytes, greeting.count};
}

}  // namespace

void check_shape(const Driver& driver, const RegionShape& shape) {
  std::size_t granularity_bytes = 0;
  const AllocationProperties unshared = properties(shape.device, false);
  driver.cuMemGetAllocationGranularity(text("device ", shape.device), &granularity_bytes, &unshared,
                                       Granularity::minimum);
  if (shape.region_bytes == 0 || shape.region_bytes % granularity_bytes != 0) {
    const std::uint64_t units = std::max<std::uint64_t>(1, shape.region_bytes / granularity_bytes);
    throw Fault(Fault::Kind::device,
                text("regions of ", shape.region_bytes, " bytes: device ", shape.device, " gives memory in units of ",
                     granularity_bytes, " bytes"),
                text("Set the region size to a multiple of ", granularity_bytes, " bytes, such as ",
                     units * granularity_bytes, "."));
  }
  if (shape.count == 0 || shape.count > layout::max_bytes / shape.region_bytes) {
    throw Fault(Fault::Kind::invariant, text("a device of ", shape.count, " regions of ", shape.region_bytes,
                                             " bytes: it must hold one and at most ", layout::max_bytes, " bytes"));
  }
}

Region Region::create(const Driver& driver, const RegionShape& shape, std::uint64_t index, bool shared) {
  Region made(driver);
  const AllocationProperties kind = properties(shape.device, shared);
  const Result result = driver.cuMemCreate.answer(&made.handle_, shape.region_bytes, &kind, 0);
  if (result != Result::success) {
    made.handle_ = 0;
    driver.fail(text("device ", shape.device, ": allocating ", named(index), " of ", shape.count, ", ",
                     shape.region_bytes, " bytes"),
                driver.cuMemCreate.name(), result);
  }
  return made;
}

Region Region::import(const Driver& driver, std::uint64_t index, int descriptor) {
  Region made(driver);
  // For this type of handle the driver expects the value of the descriptor in the pointer argument.
  auto* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));  // NOLINT
  driver.cuMemImportFromShareableHandle(text("importing ", named(index)), &made.handle_, handle,
                                        HandleType::file_descriptor);
  return made;
}

Region Region::behind(const Driver& driver, Address mapped) {
  Region made(driver);
  driver.cuMemRetainAllocationHandle("finding the region behind an address", &made.handle_,
                                     reinterpret_cast<void*>(mapped));
  return made;
}

Region::~Region() {
  if (handle_ != 0) driver_.cuMemRelease.answer(handle_);
}

FileDescriptor Region::descriptor(std::uint64_t index) const {
  int number = -1;
  driver_.cuMemExportToShareableHandle(text("exporting ", named(index)), &number, handle_,
                                       HandleType::file_descriptor, 0);
  return FileDescriptor(number);
}

RegionBroker::RegionBroker(const Driver& driver, const RegionShape& shape) : driver_(driver), shape_(shape) {
  check_shape(driver_, shape_);
  regions_.reserve(shape_.count);
  for (std::uint64_t index = 0; index < shape_.count; ++index) {
    regions_.push_back(Region::create(driver_, shape_, index, true));
  }
  regions_.front().descriptor(0);  // raises a fault now if the driver cannot export handles on this machine
}

void RegionBroker::send(int socket) const {
  const Greeting greeting{greeting_magic, greeting_version, shape_.region_bytes, shape_.count};
  send_bytes(socket, std::as_bytes(std::span(&greeting, 1)));
  std::byte answer{};
  // A spare process may connect long before it maps the regions: export nothing until it is ready.
  receive_bytes(socket, std::span(&answer, 1));
  for (std::uint64_t first = 0; first < shape_.count; first += batch) {
    const std::uint64_t end = std::min<std::uint64_t>(first + batch, shape_.count);
    std::vector<FileDescriptor> exported;
    std::vector<int> numbers;
    for (std::uint64_t index = first; index < end; ++index) {
      exported.push_back(regions_[index].descriptor(index));
      numbers.push_back(exported.back().number());
    }
    send_descriptors(socket, numbers);
    // Descriptors in transit count against the sender's limit, so wait until these have arrived.
    receive_bytes(socket, std::span(&answer, 1));
  }
}

RegionMap::RegionMap(const Driver& driver, const RegionShape& shape) : driver_(driver), shape_(shape) {
  check_shape(driver_, shape_);
  mapped_.resize(shape_.count);
  driver_.cuMemAddressReserve(text("reserving addresses for ", shape_.capacity_bytes(), " bytes"), &base_,
                              shape_.capacity_bytes(), 0, 0, 0);
}

RegionMap RegionMap::reserve(const Driver& driver, const RegionShape& shape) { return {driver, shape}; }

RegionMap RegionMap::receive(const Driver& driver, int device, int socket) {
  RegionMap map(driver, received_shape(device, socket));
  map.own_ = false;
  send_bytes(socket, std::span(&taken, 1));
  const std::uint64_t count = map.shape_.count;
  for (std::uint64_t first = 0; first < count; first += batch) {
    const std::uint64_t in_batch = std::min<std::uint64_t>(batch, count - first);
    const std::vector<FileDescriptor> descriptors = receive_descriptors(socket, in_batch);
    for (std::uint64_t i = 0; i < in_batch; ++i) {
      map.map(first + i, Region::import(driver, first + i, descriptors[i].number()));
    }
    send_bytes(socket, std::span(&taken, 1));
  }
  map.allow(0, count);
  return map;
}

RegionMap::RegionMap(RegionMap&& other) noexcept
    : driver_(other.driver_),
      shape_(other.shape_),
      own_(other.own_),
      base_(std::exchange(other.base_, 0)),
      mapped_(std::exchange(other.mapped_, {})) {}

// The handles were released as soon as the memory was mapped, because a mapping keeps the memory alive.
RegionMap::~RegionMap() {
  if (base_ == 0) return;
  for (std::uint64_t index = 0; index < shape_.count; ++index) {
    if (mapped_[index]) driver_.cuMemUnmap.answer(at(index), shape_.region_bytes);
  }
  driver_.cuMemAddressFree.answer(base_, shape_.capacity_bytes());
}

void RegionMap::add(std::uint64_t first, std::uint64_t count) {
  std::uint64_t index = first;
  try {
    for (; index < first + count; ++index) map(index, Region::create(driver_, shape_, index, false));
    allow(first, count);
  } catch (const Fault&) {
    remove(first, index - first);
    throw;
  }
}

void RegionMap::remove(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t index = first; index < first + count; ++index) {
    if (!mapped_.at(index)) continue;
    mapped_[index] = false;
    driver_.cuMemUnmap(text("taking ", named(index), " away"), at(index), shape_.region_bytes);
  }
}

void RegionMap::show(std::uint64_t index, Address mapped) {
  map(index, Region::behind(driver_, mapped));
  try {
    allow(index, 1);
  } catch (const Fault&) {
    remove(index, 1);
    throw;
  }
}

void RegionMap::touch() const {
  for (std::uint64_t index = 0; index < shape_.count; ++index) {
    driver_.cuMemsetD8Async(text("writing to ", named(index)), at(index), 0, 1, nullptr);
  }
  driver_.cuCtxSynchronize("waiting for what was written");
}

bool RegionMap::holds(Address address, std::size_t size_bytes) const noexcept {
  if (address < base_ || size_bytes == 0 || size_bytes > shape_.capacity_bytes() ||
      address - base_ > shape_.capacity_bytes() - size_bytes) {
    return false;
  }
  const std::uint64_t first = (address - base_) / shape_.region_bytes;
  const std::uint64_t last = (address - base_ + size_bytes - 1) / shape_.region_bytes;
  for (std::uint64_t index = first; index <= last; ++index) {
    if (!mapped_[index]) return false;
  }
  return true;
}

void RegionMap::map(std::uint64_t index, const Region& region) {
  if (index >= shape_.count || mapped_[index]) {
    throw Fault(Fault::Kind::invariant,
                text(named(index), ": there are ", shape_.count, ", and none is mapped twice"));
  }
  driver_.cuMemMap(text("mapping ", named(index)), at(index), shape_.region_bytes, 0, region.handle(), 0);
  mapped_[index] = true;
}

void RegionMap::allow(std::uint64_t first, std::uint64_t count) {
  const AccessDescription access{{LocationType::device, shape_.device}, access_read_write};
  driver_.cuMemSetAccess(text("getting access to regions ", first, " to ", first + count - 1), at(first),
                         count * shape_.region_bytes, &access, 1);
}

}  // namespace tensile::cuda
