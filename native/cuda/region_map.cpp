#include "cuda/region_map.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "cuda/resources.hpp"
#include "descriptors.hpp"
#include "ledger_layout.hpp"

namespace tensile::cuda {
namespace {

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
    regions_.emplace_back(Region::create(driver_, shape_, index, true));
  }
  region(0).descriptor(0);  // raises a fault now if the driver cannot export handles on this machine
}

std::vector<std::uint64_t> RegionBroker::present() const {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t index = 0; index < shape_.count; ++index) {
    if (regions_[index]) numbers.push_back(index);
  }
  return numbers;
}

const Region& RegionBroker::region(std::uint64_t index) const {
  if (index >= shape_.count || !regions_[index]) {
    throw Fault(Fault::Kind::invariant, text(named(index), " of ", shape_.count, " has no memory"));
  }
  return *regions_[index];
}

void RegionBroker::send(int socket) const {
  greet(socket);
  add(socket, present());
}

void RegionBroker::greet(int socket) const {
  const Greeting greeting{greeting_magic, greeting_version, shape_.region_bytes, shape_.count};
  send_bytes(socket, std::as_bytes(std::span(&greeting, 1)));
  // A spare process may connect long before it maps the regions: export nothing until it is ready.
  receive_answer(socket);
}

void RegionBroker::add(int socket, const std::vector<std::uint64_t>& regions) const {
  send_change(socket, {ChangeKind::add, regions});
  for (std::size_t first = 0; first < regions.size(); first += batch_regions) {
    const std::size_t end = std::min(first + batch_regions, regions.size());
    std::vector<FileDescriptor> exported;
    std::vector<int> numbers;
    for (std::size_t i = first; i < end; ++i) {
      exported.push_back(region(regions[i]).descriptor(regions[i]));
      numbers.push_back(exported.back().number());
    }
    send_descriptors(socket, numbers);
    // Descriptors in transit count against the sender's limit, so wait until these have arrived.
    receive_answer(socket);
  }
  receive_answer(socket);
}

void RegionBroker::remove(int socket, const std::vector<std::uint64_t>& regions) {
  send_change(socket, {ChangeKind::remove, regions});
  receive_answer(socket);
}

std::vector<std::uint64_t> RegionBroker::create(const std::vector<std::uint64_t>& regions) {
  std::vector<std::uint64_t> created;
  for (const std::uint64_t index : regions) {
    if (index >= shape_.count || regions_[index]) {
      throw Fault(Fault::Kind::invariant,
                  text(named(index), " of ", shape_.count, " gets memory and has it already"));
    }
    try {
      regions_[index].emplace(Region::create(driver_, shape_, index, true));
    } catch (const Fault& fault) {
      if (fault.kind() != Fault::Kind::memory) throw;
      break;
    }
    created.push_back(index);
  }
  return created;
}

void RegionBroker::release(const std::vector<std::uint64_t>& regions) {
  for (const std::uint64_t index : regions) {
    region(index);  // raises a fault if it has no memory
    regions_[index].reset();
  }
}

// The reserved addresses and the regions mapped there. All members are used under the lock, except those that never
// change.
class RegionMap::Mapped {
 public:
  Mapped(const Driver& driver, const RegionShape& shape, bool own) : driver_(driver), shape_(shape), own_(own) {
    check_shape(driver_, shape_);
    mapped_.resize(shape_.count);
    driver_.cuMemAddressReserve(text("reserving addresses for ", shape_.capacity_bytes(), " bytes"), &base_,
                                shape_.capacity_bytes(), 0, 0, 0);
  }

  // The handles were released as soon as the memory was mapped, because a mapping keeps the memory alive.
  ~Mapped() {
    for (std::uint64_t index = 0; index < shape_.count; ++index) {
      if (mapped_[index]) driver_.cuMemUnmap.answer(at(index), shape_.region_bytes);
    }
    driver_.cuMemAddressFree.answer(base_, shape_.capacity_bytes());
  }

  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const RegionShape& shape() const noexcept { return shape_; }
  const Driver& driver() const noexcept { return driver_; }
  Address base() const noexcept { return base_; }
  bool is_own() const noexcept { return own_; }
  Address at(std::uint64_t index) const noexcept { return base_ + index * shape_.region_bytes; }
  std::unique_lock<std::mutex> hold_changes() { return std::unique_lock(changes_); }

  void map(std::uint64_t index, const Region& region) {
    const std::lock_guard lock(mutex_);
    if (index >= shape_.count || mapped_[index]) {
      throw Fault(Fault::Kind::invariant,
                  text(named(index), ": there are ", shape_.count, ", and none is mapped twice"));
    }
    driver_.cuMemMap(text("mapping ", named(index)), at(index), shape_.region_bytes, 0, region.handle(), 0);
    mapped_[index] = true;
  }

  void unmap(std::uint64_t index) {
    const std::lock_guard lock(mutex_);
    if (!mapped_.at(index)) return;
    mapped_[index] = false;
    driver_.cuMemUnmap(text("taking ", named(index), " away"), at(index), shape_.region_bytes);
  }

  void allow(std::uint64_t first, std::uint64_t count) {
    const AccessDescription access{{LocationType::device, shape_.device}, access_read_write};
    driver_.cuMemSetAccess(text("getting access to regions ", first, " to ", first + count - 1), at(first),
                           count * shape_.region_bytes, &access, 1);
  }

  bool is_mapped(std::uint64_t first, std::uint64_t last) const {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t index = first; index <= last; ++index) {
      if (!mapped_[index]) return false;
    }
    return true;
  }

  // Make one change of the broker's. Needs a current context.
  void apply(int socket, const RegionChange& change) {
    const std::lock_guard lock(changes_);
    if (change.kind == ChangeKind::add) {
      map_received(socket, change.regions);
    } else {
      // Jobs of this process may have freed these regions while the device still worked in them.
      driver_.cuCtxSynchronize("waiting for the last use of regions");
      for (const std::uint64_t index : change.regions) unmap(index);
    }
  }

 private:
  void map_received(int socket, const std::vector<std::uint64_t>& regions) {
    for (std::size_t first = 0; first < regions.size(); first += batch_regions) {
      const std::size_t in_batch = std::min(batch_regions, regions.size() - first);
      const std::vector<FileDescriptor> descriptors = receive_descriptors(socket, in_batch);
      for (std::size_t i = 0; i < in_batch; ++i) {
        const std::uint64_t index = regions[first + i];
        map(index, Region::import(driver_, index, descriptors[i].number()));
      }
      send_answer(socket, change_done);
    }
    allow_runs(regions);
  }

  // Get access to regions, with one call for each run of neighbours in the list.
  void allow_runs(const std::vector<std::uint64_t>& regions) {
    for (std::size_t first = 0, end = 0; first < regions.size(); first = end) {
      for (end = first + 1; end < regions.size() && regions[end] == regions[end - 1] + 1;) ++end;
      allow(regions[first], end - first);
    }
  }

  const Driver& driver_;
  const RegionShape shape_;
  const bool own_;
  Address base_ = 0;
  mutable std::mutex mutex_;
  std::vector<bool> mapped_;
  std::mutex changes_;  // locked while a change of the broker's is made
};

RegionMap::RegionMap(std::unique_ptr<Mapped> mapped) : mapped_(std::move(mapped)) {}

RegionMap::RegionMap(RegionMap&& other) noexcept = default;

RegionMap::~RegionMap() {
  // In a forked child the listener's thread does not exist. Nobody can wait for it, so what it uses is never freed.
  if (after_fork && listener_ != nullptr) listener_.release()->abandon();
  listener_.reset();
}

RegionMap RegionMap::reserve(const Driver& driver, const RegionShape& shape) {
  return RegionMap(std::make_unique<Mapped>(driver, shape, true));
}

RegionMap RegionMap::receive(const Driver& driver, int device, int socket) {
  const RegionShape shape = received_shape(device, socket);
  RegionMap map(std::make_unique<Mapped>(driver, shape, false));
  Mapped* const mapped = map.mapped_.get();
  send_answer(socket, change_done);
  const std::optional<RegionChange> first = receive_change(socket, shape.count);
  if (!first) throw Fault(Fault::Kind::device, "the broker of regions has closed the socket");
  mapped->apply(socket, *first);
  send_answer(socket, change_done);
  const auto context = std::make_shared<const PrimaryContext>(driver, device);
  map.listener_ = std::make_unique<RegionListener>(socket, shape.count,
                                                   [mapped, context](int connection, const RegionChange& change) {
                                                     const Current current(*context);
                                                     mapped->apply(connection, change);
                                                   });
  return map;
}

const RegionShape& RegionMap::shape() const noexcept { return mapped_->shape(); }
Address RegionMap::base() const noexcept { return mapped_->base(); }
bool RegionMap::is_own() const noexcept { return mapped_->is_own(); }
std::unique_lock<std::mutex> RegionMap::hold_changes() const { return mapped_->hold_changes(); }

void RegionMap::add(std::uint64_t first, std::uint64_t count) {
  std::uint64_t index = first;
  try {
    for (; index < first + count; ++index) {
      mapped_->map(index, Region::create(mapped_->driver(), mapped_->shape(), index, false));
    }
    mapped_->allow(first, count);
  } catch (const Fault&) {
    remove(first, index - first);
    throw;
  }
}

void RegionMap::remove(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t index = first; index < first + count; ++index) mapped_->unmap(index);
}

void RegionMap::show(std::uint64_t index, Address mapped) {
  mapped_->map(index, Region::behind(mapped_->driver(), mapped));
  try {
    mapped_->allow(index, 1);
  } catch (const Fault&) {
    remove(index, 1);
    throw;
  }
}

void RegionMap::touch() const {
  const RegionShape& shape = mapped_->shape();
  for (std::uint64_t index = 0; index < shape.count; ++index) {
    if (!mapped_->is_mapped(index, index)) continue;
    mapped_->driver().cuMemsetD8Async(text("writing to ", named(index)), mapped_->at(index), 0, 1, nullptr);
  }
  mapped_->driver().cuCtxSynchronize("waiting for what was written");
}

bool RegionMap::holds(Address address, std::size_t size_bytes) const noexcept {
  const RegionShape& shape = mapped_->shape();
  const Address begin = mapped_->base();
  if (address < begin || size_bytes == 0 || size_bytes > shape.capacity_bytes() ||
      address - begin > shape.capacity_bytes() - size_bytes) {
    return false;
  }
  return mapped_->is_mapped((address - begin) / shape.region_bytes,
                            (address - begin + size_bytes - 1) / shape.region_bytes);
}

}  // namespace tensile::cuda
