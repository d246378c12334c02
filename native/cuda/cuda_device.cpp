#include "cuda/cuda_device.hpp"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "fault.hpp"

namespace tensile::cuda {
namespace {

// The interval at which a waiting host polls: the driver has no call that waits for an event for a limited time.
constexpr std::chrono::microseconds poll_interval{50};

// The lowest bit of a ticket is the lane; the other bits are the number of the copy on that lane.
constexpr Ticket out_ticket(std::uint64_t number) { return number << 1; }
constexpr Ticket in_ticket(std::uint64_t number) { return number << 1 | 1; }
constexpr bool is_in(Ticket ticket) { return (ticket & 1) != 0; }

// The alignment of torch's own allocator. cuBLAS and cuDNN choose their kernels by it.
constexpr std::uint64_t alignment_bytes = 512;

std::byte* memory_at(Address address) { return reinterpret_cast<std::byte*>(address); }

RegionMap check_shape(RegionMap map, const Ledger& ledger) {
  const PoolUsage pool = ledger.usage();
  const RegionShape& shape = map.shape();
  if (shape.region_bytes != pool.region_bytes || shape.count != ledger.regions().count()) {
    throw Fault(Fault::Kind::device,
                text("device ", shape.device, ": ", shape.count, " regions of ", shape.region_bytes,
                     " bytes are mapped, the ledger has ", ledger.regions().count(), " of ", pool.region_bytes),
                "Take regions and ledger from one controller.");
  }
  return map;
}

StreamPointer pointer(StreamHandle stream) { return reinterpret_cast<StreamPointer>(stream); }

StreamHandle handle(StreamPointer stream) { return reinterpret_cast<StreamHandle>(stream); }

// Poll until the condition is true. False if the time limit passes first.
template <typename Condition>
bool wait_until(Condition condition, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(poll_interval);
  }
  return true;
}

}  // namespace

CudaDevice::CudaDevice(const Driver& driver, Ledger ledger, const Claim& claim, RegionMap map,
                       std::uint64_t host_pool_bytes, std::size_t chunk_bytes)
    : driver_(driver),
      ledger_(std::move(ledger)),
      claim_(claim),
      account_(Ledger::attach(ledger_.fd()), claim),
      context_(driver, map.shape().device),
      map_(check_shape(std::move(map), ledger_)),
      shown_(RegionMap::reserve(driver, map_.shape())),
      arena_(Ledger::attach(ledger_.fd()), claim, {alignment_bytes, false},
             ForeignMemory{memory_at(map_.base()), [this](Range bytes) { map_and_clear(bytes); },
                           [this](Range bytes) { drop(bytes); }}),
      pinned_(context_),
      pool_(host_pool_bytes,
            account_.counted({[this](std::byte* address, std::size_t size) { pinned_.add(address, size); },
                              [this](std::byte* address, std::size_t size) { pinned_.remove(address, size); }})),
      fences_(context_),
      out_(context_, CopyLane::Direction::out, chunk_bytes, pinned_, account_.out_lane()),
      in_(context_, CopyLane::Direction::in, chunk_bytes, pinned_, account_.in_lane()) {}

CudaDevice::~CudaDevice() {
  if (at_end_) at_end_();
  close();
  stop_recording();
  // The memory is about to be released: no work queued on any stream may still use it.
  const Current current(context_, std::nothrow);
  driver_.cuCtxSynchronize.answer();
  for (const auto& [address, size_bytes] : outside_) driver_.cuMemFree.answer(address);
}

void CudaDevice::move(std::uint64_t freed_bytes, std::uint64_t taken_bytes) {
  arena_.expect(account_.move(freed_bytes, taken_bytes));
}

SlotUsage CudaDevice::usage() const { return account_.usage(); }

void CudaDevice::reset_high_water() {
  account_.reset_high_water();
  arena_.reset_high_water();
}

Ticket CudaDevice::copy_out(std::byte* host, DeviceAddress device, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  return out_ticket(copy(out_, in_, {device, host, size_bytes}));
}

Ticket CudaDevice::copy_in(DeviceAddress device, const std::byte* host, std::size_t size_bytes) {
  const std::lock_guard lock(mutex_);
  return in_ticket(copy(in_, out_, {device, const_cast<std::byte*>(host), size_bytes}));
}

Ticket CudaDevice::copy(CopyLane& lane, CopyLane& other, const CopyLane::Copy& copy) {
  check(copy);
  const Current current(context_);
  const Event computed = fences_.take();
  driver_.cuEventRecord("marking what is computed before a copy", computed.handle(), pointer(compute_));
  std::vector<EventPointer> after{computed.handle()};
  other.add_users(copy.device, copy.size_bytes, after);
  other.add_users(copy.host, copy.size_bytes, after);
  return lane.submit(copy, after);
}

// The new stream continues after the work of the old one, so work ordered on the old stream stays ordered.
void CudaDevice::compute_on(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (stream == compute_) return;
  const Current current(context_);
  order(compute_, stream);
  compute_ = stream;
}

void CudaDevice::compute_after(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const Current current(context_);
  const EventPointer end = (is_in(ticket) ? in_ : out_).end_of(ticket >> 1);
  if (end != nullptr) driver_.cuStreamWaitEvent("ordering computation after a copy", pointer(compute_), end, 0);
}

DeviceAddress CudaDevice::allocate(std::uint64_t size_bytes, StreamHandle stream) {
  const auto address = reinterpret_cast<DeviceAddress>(arena_.allocate(size_bytes));
  return order_after_allocation(address, size_bytes, stream);
}

DeviceAddress CudaDevice::allocate_at(std::uint64_t offset, std::uint64_t size_bytes, StreamHandle stream) {
  const auto address = reinterpret_cast<DeviceAddress>(arena_.allocate_at(offset, size_bytes));
  return order_after_allocation(address, size_bytes, stream);
}

DeviceAddress CudaDevice::order_after_allocation(DeviceAddress address, std::uint64_t size_bytes,
                                                 StreamHandle stream) {
  try {
    order_before_use(address, size_bytes, stream);
  } catch (...) {
    arena_.free(memory_at(address));
    throw;
  }
  return address;
}

void CudaDevice::free(DeviceAddress address, StreamHandle stream) {
  order_after_free(stream);
  arena_.free(memory_at(address));
}

void CudaDevice::order_before_use(DeviceAddress device, std::size_t size_bytes, StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  std::vector<EventPointer> before;
  out_.add_users(device, size_bytes, before);
  in_.add_users(device, size_bytes, before);
  if (before.empty() && stream == compute_) return;
  const Current current(context_);
  for (const EventPointer end : before) {
    driver_.cuStreamWaitEvent("ordering computation after a copy of its memory", pointer(stream), end, 0);
  }
  order(compute_, stream);
}

void CudaDevice::order_after_free(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (stream == compute_) return;
  const Current current(context_);
  order(stream, compute_);
}

void CudaDevice::order(StreamHandle first, StreamHandle second) {
  if (first == second) return;
  const Event fence = fences_.take();
  driver_.cuEventRecord("marking what one stream was given", fence.handle(), pointer(first));
  driver_.cuStreamWaitEvent("ordering one stream after another", pointer(second), fence.handle(), 0);
}

StreamHandle CudaDevice::computing_on() const {
  const std::lock_guard lock(mutex_);
  return compute_;
}

// Clear the region: it may hold data of another job.
void CudaDevice::map_and_clear(Range bytes) {
  const std::lock_guard lock(mutex_);
  forbid_recording("a new region must be cleared");
  const Address address = map_.base() + bytes.offset;
  const Current current(context_);
  if (!map_.holds(address, bytes.size_bytes)) {
    const std::uint64_t region = bytes.offset / map_.shape().region_bytes;
    if (!map_.is_own()) {
      throw Fault(Fault::Kind::device, text("region ", region, " is granted to this job and not mapped here"),
                  "This process could not map the region when the controller created it; its log has the reason.");
    }
    map_.add(region, 1);
  }
  driver_.cuMemsetD8Async("clearing a region", address, 0, bytes.size_bytes, pointer(compute_));
}

void CudaDevice::hold_regions() { held_ = map_.hold_changes(); }

void CudaDevice::let_regions_change() noexcept { held_ = {}; }

void CudaDevice::begin_recording() {
  const std::lock_guard lock(mutex_);
  const Current current(context_);
  CaptureStatus status = CaptureStatus::none;
  driver_.cuStreamIsCapturing("recording an iteration", pointer(compute_), &status);
  if (status != CaptureStatus::active) {
    throw Fault(Fault::Kind::invariant, "the computing stream is not being recorded");
  }
  forbid_recording("recording has begun already");
  recording_ = true;
  try {
    for (CopyLane* lane : {&out_, &in_}) {
      lane->begin_recording();
      order(compute_, handle(lane->stream()));
    }
  } catch (...) {
    stop_recording();
    throw;
  }
}

CudaDevice::Copied CudaDevice::end_recording() {
  const std::lock_guard lock(mutex_);
  try {
    const Current current(context_);
    for (const CopyLane* lane : {&out_, &in_}) order(handle(lane->stream()), compute_);
    if (!freed_.empty()) forbid_recording("the iteration freed memory that it had not allocated");
  } catch (...) {
    stop_recording();
    throw;
  }
  return stop_recording();
}

void CudaDevice::give_up_recording() noexcept {
  const std::lock_guard lock(mutex_);
  stop_recording();
  if (freed_.empty()) return;
  const Current current(context_, std::nothrow);
  for (const DeviceAddress address : freed_) {
    outside_bytes_ -= outside_.extract(address).mapped();
    driver_.cuMemFree.answer(address);
  }
  freed_.clear();
}

CudaDevice::Copied CudaDevice::stop_recording() noexcept {
  recording_ = false;
  const std::uint64_t out_bytes = out_.end_recording();
  return {out_bytes, in_.end_recording()};
}

void CudaDevice::count(const Copied& copied) noexcept {
  const std::lock_guard lock(mutex_);
  out_.count(copied.out_bytes);
  in_.count(copied.in_bytes);
}

void CudaDevice::forbid_recording(const char* reason) const {
  if (recording_) throw Fault(Fault::Kind::device, text("an iteration cannot be recorded: ", reason));
}

void CudaDevice::check_context() const {
  const std::lock_guard lock(mutex_);
  const Current current(context_);
  driver_.cuCtxSynchronize("waiting for what was queued");
}

void CudaDevice::trim() {
  if (!map_.is_own()) return;
  {
    const Current current(context_);
    driver_.cuCtxSynchronize("waiting for the last use of regions");
  }
  arena_.trim();
}

void CudaDevice::drop(Range bytes) {
  const std::lock_guard lock(mutex_);
  const Current current(context_);
  map_.remove(bytes.offset / map_.shape().region_bytes, 1);
}

void CudaDevice::allow_outside(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  outside_limit_bytes_ = size_bytes;
}

DeviceAddress CudaDevice::allocate_outside(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  forbid_recording("torch asks for memory that no plan foresaw");
  if (size_bytes > outside_limit_bytes_ - std::min(outside_limit_bytes_, outside_bytes_)) return 0;
  const Current current(context_);
  Address address = 0;
  driver_.cuMemAlloc(text("allocating ", size_bytes, " bytes outside the regions"), &address, size_bytes);
  outside_.emplace(address, size_bytes);
  outside_bytes_ += size_bytes;
  return address;
}

// cuMemFree waits for queued work before it releases memory.
bool CudaDevice::free_outside(DeviceAddress address) {
  const std::lock_guard lock(mutex_);
  if (recording_ && outside_.contains(address)) {
    freed_.push_back(address);
    return true;
  }
  const auto entry = outside_.extract(address);
  if (!entry) return false;
  outside_bytes_ -= entry.mapped();
  const Current current(context_);
  driver_.cuMemFree("giving memory back to the driver", address);
  return true;
}

std::uint64_t CudaDevice::outside_bytes() const {
  const std::lock_guard lock(mutex_);
  return outside_bytes_;
}

bool CudaDevice::done(Ticket ticket) const {
  return is_in(ticket) ? both_done(0, ticket >> 1) : both_done(ticket >> 1, 0);
}

bool CudaDevice::both_done(std::uint64_t out_number, std::uint64_t in_number) const {
  const std::lock_guard lock(mutex_);
  forbid_recording("the host waits for a copy");
  const Current current(context_);
  return out_.done(out_number) && in_.done(in_number);
}

bool CudaDevice::wait_for(Ticket ticket, std::chrono::nanoseconds limit) {
  return wait_until([&] { return done(ticket); }, limit);
}

bool CudaDevice::drain_for(std::chrono::nanoseconds limit) {
  std::unique_lock lock(mutex_);
  const std::uint64_t out = out_.latest();
  const std::uint64_t in = in_.latest();
  lock.unlock();
  return wait_until([&] { return both_done(out, in); }, limit);
}

std::byte* CudaDevice::host_allocate(std::uint64_t size_bytes) { return pool_.allocate(size_bytes); }

void CudaDevice::host_free(const std::byte* host) {
  const std::lock_guard lock(mutex_);
  if (copies_use(host, pool_.size_bytes(host))) {
    throw Fault(Fault::Kind::invariant,
                text("host buffer ", static_cast<const void*>(host), " is freed while a copy still uses it"));
  }
  pool_.free(host);
}

HostUsage CudaDevice::host_usage() const { return pool_.usage(); }

std::vector<HostMove> CudaDevice::host_pack() {
  const std::lock_guard lock(mutex_);
  if (copies_use(reinterpret_cast<const std::byte*>(pool_.begin()), pool_.usage().limit_bytes)) {
    throw Fault(Fault::Kind::invariant, "host buffers are moved while a copy still uses one");
  }
  return pool_.pack();
}

void CudaDevice::host_fit(std::uint64_t free_bytes) { pool_.resize_tail(free_bytes); }

bool CudaDevice::copies_use(const std::byte* host, std::uint64_t size_bytes) {
  const Current current(context_);
  std::vector<EventPointer> users;
  for (CopyLane* lane : {&out_, &in_}) {
    lane->retire();
    lane->add_users(host, size_bytes, users);
  }
  return !users.empty();
}

void CudaDevice::host_prepare(std::uint64_t size_bytes) { pool_.prepare(size_bytes); }

void CudaDevice::close() noexcept {
  // After a fork, the copies belong to the parent, and the lock may be held by a thread that this process does not
  // have.
  if (after_fork) return;
  const std::lock_guard lock(mutex_);
  if (std::exchange(closed_, true)) return;
  const Current current(context_, std::nothrow);
  out_.finish();
  in_.finish();
}

bool CudaDevice::holds(DeviceAddress device, std::size_t size_bytes) const {
  const auto after = outside_.upper_bound(device);
  const bool is_outside =
      after != outside_.begin() && device + size_bytes <= std::prev(after)->first + std::prev(after)->second;
  return is_outside || map_.holds(device, size_bytes) || shown_.holds(device, size_bytes);
}

void CudaDevice::check(const CopyLane::Copy& copy) const {
  if (closed_) throw Fault(Fault::Kind::invariant, "the device is closed, it copies nothing more");
  const std::uint64_t buffer_bytes = pool_.size_bytes(copy.host);
  if (copy.size_bytes > buffer_bytes) {
    throw Fault(Fault::Kind::invariant,
                text("a copy of ", copy.size_bytes, " bytes exceeds the host buffer of ", buffer_bytes, " bytes"));
  }
  if (copy.size_bytes != 0 && !holds(copy.device, copy.size_bytes)) {
    throw Fault(Fault::Kind::invariant, text("a copy of ", copy.size_bytes, " bytes at device address ", copy.device,
                                             ", which this device does not own"));
  }
}

}  // namespace tensile::cuda
