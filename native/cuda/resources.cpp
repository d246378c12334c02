#include "cuda/resources.hpp"

#include <algorithm>
#include <iterator>

#include "shared_memory.hpp"

namespace tensile::cuda {

PrimaryContext::PrimaryContext(const Driver& driver, int ordinal) : driver_(driver) {
  const std::string purpose = text("opening device ", ordinal);
  driver_.cuDeviceGet(purpose, &device_, ordinal);
  sleep_in_waits(purpose);
  driver_.cuDevicePrimaryCtxRetain(purpose, &context_, device_);
}

// Let threads sleep while they wait for the device. Must be called before the context is active: an older driver
// refuses the flags afterwards, and then those chosen by the creator of the context apply.
void PrimaryContext::sleep_in_waits(const std::string& purpose) {
  const Call<DeviceNumber, unsigned int>& call = driver_.cuDevicePrimaryCtxSetFlags;
  const Result result = call.answer(device_, schedule_blocking);
  if (result != Result::success && result != Result::primary_context_active)
    driver_.fail(purpose, call.name(), result);
}

PrimaryContext::~PrimaryContext() { driver_.cuDevicePrimaryCtxRelease.answer(device_); }

Current::Current(const PrimaryContext& context) : driver_(context.driver()) {
  driver_.cuCtxPushCurrent("using the device from this thread", context.handle());
}

Current::Current(const PrimaryContext& context, std::nothrow_t) noexcept
    : driver_(context.driver()), pushed_(driver_.cuCtxPushCurrent.answer(context.handle()) == Result::success) {}

Current::~Current() {
  Context popped = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent.answer(&popped);
}

Stream::Stream(const PrimaryContext& context) : context_(context) {
  const Current current(context_);
  context_.driver().cuStreamCreate("making a copy lane", &stream_, stream_non_blocking);
}

Stream::~Stream() {
  const Current current(context_, std::nothrow);
  context_.driver().cuStreamDestroy.answer(stream_);
}

Event::~Event() {
  if (event_ != nullptr) pool_->spare_.push_back(event_);
}

EventPool::~EventPool() {
  const Current current(context_, std::nothrow);
  for (EventPointer event : made_) context_.driver().cuEventDestroy.answer(event);
}

Event EventPool::take() {
  if (spare_.empty()) {
    if (made_.size() == made_.capacity()) made_.reserve(std::max(std::size_t{16}, 2 * made_.size()));
    spare_.reserve(made_.capacity());
    EventPointer event = nullptr;
    context_.driver().cuEventCreate("making an event", &event, flags_);
    made_.push_back(event);
    return {*this, event};
  }
  const EventPointer event = spare_.back();
  spare_.pop_back();
  return {*this, event};
}

PinnedRanges::~PinnedRanges() {
  const Current current(context_, std::nothrow);
  const Driver& driver = context_.driver();
  for (const auto& [address, size_bytes] : ranges_) {
    driver.cuMemHostUnregister.answer(address);
  }
}

void PinnedRanges::add(std::byte* address, std::size_t size_bytes) {
  const Current current(context_);
  const std::lock_guard lock(mutex_);
  prefer_huge_pages(address, size_bytes);
  populate(address, size_bytes);
  pin(address, size_bytes);
}

void PinnedRanges::remove(std::byte* address, std::size_t size_bytes) {
  const Current current(context_);
  const std::lock_guard lock(mutex_);
  while (!ranges_.empty()) {
    const auto [start, range_bytes] = *std::prev(ranges_.end());
    if (start + range_bytes <= address) break;
    const Call<void*>& call = context_.driver().cuMemHostUnregister;
    const Result result = call.answer(start);
    ranges_.erase(start);  // even if unregistering failed: do not try again
    if (result != Result::success) context_.driver().fail("giving back pinned memory", call.name(), result);
    if (start < address) pin(start, static_cast<std::size_t>(address - start));
  }
  discard(address, size_bytes);
}

void PinnedRanges::pin(std::byte* address, std::size_t size_bytes) {
  const auto entry = ranges_.emplace(address, size_bytes).first;
  const Call<void*, std::size_t, unsigned int>& call = context_.driver().cuMemHostRegister;
  const Result result = call.answer(address, size_bytes, register_portable);
  if (result == Result::success) return;
  ranges_.erase(entry);
  context_.driver().fail(text("pinning ", size_bytes, " more bytes of the host pool"), call.name(), result);
}

std::size_t PinnedRanges::bytes_from(const std::byte* address) const {
  const std::lock_guard lock(mutex_);
  const auto after = ranges_.upper_bound(const_cast<std::byte*>(address));
  if (after == ranges_.begin()) return 0;
  const auto& [start, size_bytes] = *std::prev(after);
  const auto passed_bytes = static_cast<std::size_t>(address - start);
  return passed_bytes < size_bytes ? size_bytes - passed_bytes : 0;
}

}  // namespace tensile::cuda
