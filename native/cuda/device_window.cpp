// The window over a job's regions: the pieces that the job keeps, and the places that its round lends to it.
//
// Both map regions a second time, at addresses that follow one another (window.hpp, lent_regions.hpp).
#include <utility>

#include "cuda/cuda_device.hpp"
#include "fault.hpp"

namespace tensile::cuda {
namespace {

StreamPointer pointer(StreamHandle stream) { return reinterpret_cast<StreamPointer>(stream); }

}  // namespace

class CudaDevice::RegionPieces final : public Pieces {
 public:
  explicit RegionPieces(CudaDevice& device) : device_(device) {}

  std::uintptr_t begin() const noexcept override { return device_.shown_.base(); }
  std::uint64_t size_bytes() const noexcept override { return device_.shown_.shape().capacity_bytes(); }
  std::uint64_t piece_bytes() const noexcept override { return device_.shown_.shape().region_bytes; }
  std::uint64_t unit_bytes() const noexcept override { return piece_bytes(); }
  void* add(std::uint64_t offset, std::uint64_t) override { return device_.show(offset); }
  void remove(void* taken, std::uint64_t offset, std::uint64_t) override { device_.hide(taken, offset); }

 private:
  CudaDevice& device_;
};

std::unique_ptr<Pieces> CudaDevice::pieces() { return std::make_unique<RegionPieces>(*this); }

void* CudaDevice::show(std::uint64_t offset) {
  std::byte* const region = arena_.allocate_region();
  if (region == nullptr) return nullptr;
  const std::lock_guard lock(mutex_);
  try {
    const Current current(context_);
    shown_.show(offset / shown_.shape().region_bytes, reinterpret_cast<Address>(region));
  } catch (...) {
    arena_.free(region);
    throw;
  }
  return region;
}

void CudaDevice::hide(void* taken, std::uint64_t offset) {
  {
    const std::lock_guard lock(mutex_);
    const Current current(context_);
    driver_.cuCtxSynchronize("waiting for the last use of a plan's memory");
    shown_.remove(offset / shown_.shape().region_bytes, 1);
  }
  arena_.free(static_cast<std::byte*>(taken));
}

class CudaDevice::RegionPlaces final : public PlaceMemory {
 public:
  RegionPlaces(CudaDevice& device, std::uint64_t first, std::uint32_t places)
      : device_(device), first_(first), places_(places) {}
  ~RegionPlaces() override {
    for (std::uint32_t place = 0; place < places_; ++place) device_.hide_region(first_ + place);
  }

  void finish(const std::vector<std::uint32_t>& places) override {
    const std::uint64_t region_bytes = device_.shown_.shape().region_bytes;
    std::vector<Range> addresses;
    for (const std::uint32_t place : places) {
      addresses.push_back({device_.shown_.base() + (first_ + place) * region_bytes, region_bytes});
    }
    device_.finish(addresses);
  }
  void back(std::uint64_t region) override {
    const std::uint64_t region_bytes = device_.map_.shape().region_bytes;
    device_.map_and_clear({region * region_bytes, region_bytes});
  }
  void map(std::uint32_t place, std::uint64_t region) override { device_.exchange(first_ + place, region); }

 private:
  CudaDevice& device_;
  const std::uint64_t first_;  // the window's region at which the places begin
  const std::uint32_t places_;
};

std::unique_ptr<LentRegions> CudaDevice::lent_regions(std::uintptr_t begin, std::uint32_t places) {
  if (map_.is_own()) {
    throw Fault(
        Fault::Kind::device,
        text("slot ", claim_.slot, ": jobs cannot share memory in phases where each process allocates its own"),
        "Turn phases off, or let the controller share the device's memory (share_memory).");
  }
  const RegionShape& shape = shown_.shape();
  const std::uint64_t first = (begin - shown_.base()) / shape.region_bytes;
  std::unique_ptr<PlaceMemory> memory;
  if (begin != 0) {
    if ((begin - shown_.base()) % shape.region_bytes != 0 || first > shape.count || places > shape.count - first) {
      throw Fault(Fault::Kind::invariant,
                  text(places, " places from address ", begin, " on: they must be whole regions of the window of ",
                       shape.count, " regions at ", shown_.base()));
    }
    memory = std::make_unique<RegionPlaces>(*this, first, places);
  }
  return std::make_unique<LentRegions>(Ledger::attach(ledger_.fd()), claim_, places, std::move(memory));
}

void CudaDevice::finish() { finish({}); }

// The computing stream comes after every stream that has freed memory, and waits here for the copies of these bytes.
void CudaDevice::finish(const std::vector<Range>& addresses) {
  StreamHandle computing = 0;
  {
    const std::lock_guard lock(mutex_);
    forbid_recording("regions of a round are given back");
    std::vector<EventPointer> copies;
    for (const Range& range : addresses) {
      out_.add_users(range.offset, range.size_bytes, copies);
      in_.add_users(range.offset, range.size_bytes, copies);
    }
    const Current current(context_);
    for (const EventPointer end : copies) {
      driver_.cuStreamWaitEvent("ordering the end of a segment after its copies", pointer(compute_), end, 0);
    }
    computing = compute_;
  }
  const Current current(context_);  // without the lock: other threads may queue and ask meanwhile
  driver_.cuStreamSynchronize("waiting for the last use of regions of a round", pointer(computing));
}

// Show another region at a place of the window that nothing uses.
void CudaDevice::exchange(std::uint64_t shown, std::uint64_t region) {
  const std::lock_guard lock(mutex_);
  forbid_recording("regions of a round are taken");
  const Current current(context_);
  shown_.remove(shown, 1);
  shown_.show(shown, map_.base() + region * map_.shape().region_bytes);
}

void CudaDevice::hide_region(std::uint64_t shown) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const Current current(context_, std::nothrow);
    shown_.remove(shown, 1);
  } catch (const Fault&) {
    // The mapping ends with the process.
  }
}

}  // namespace tensile::cuda
