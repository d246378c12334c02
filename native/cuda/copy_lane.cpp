#include "cuda/copy_lane.hpp"

#include <algorithm>
#include <utility>

namespace tensile::cuda {
namespace {

// Compares ranges as integers, because C++ does not define the order of pointers into different objects.
bool overlap(std::uint64_t first, std::uint64_t first_bytes, std::uint64_t second, std::uint64_t second_bytes) {
  return first < second + second_bytes && second < first + first_bytes;
}

std::uint64_t number_of(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

CopyLane::CopyLane(const PrimaryContext& context, Direction direction, std::size_t chunk_bytes,
                   const PinnedRanges& pinned, layout::Lane& counters)
    : context_(context),
      direction_(direction),
      chunk_bytes_(chunk_bytes),
      pinned_(pinned),
      counters_(counters),
      events_(context, event_timed),
      stream_(context) {
  if (chunk_bytes == 0) throw Fault(Fault::Kind::invariant, "chunks of 0 bytes");
}

std::uint64_t CopyLane::submit(const Copy& copy, std::span<const EventPointer> after) {
  if (copy.size_bytes == 0) throw Fault(Fault::Kind::invariant, "a copy of 0 bytes");
  if (!recording_) retire();
  const Driver& driver = context_.driver();
  for (const EventPointer event : after) {
    driver.cuStreamWaitEvent("ordering a copy after what it depends on", stream_.handle(), event, 0);
  }
  Queued queued{copy, events_.take(), events_.take()};
  try {
    driver.cuEventRecord("marking a copy's begin", queued.begin.handle(), stream_.handle());
    queue(copy);
    driver.cuEventRecord("marking a copy's end", queued.end.handle(), stream_.handle());
    queued_.push_back(std::move(queued));
  } catch (...) {
    // The caller gets no number for this copy, so the copy must not be under way when the exception reaches the
    // caller.
    if (!recording_) driver.cuStreamSynchronize.answer(stream_.handle());
    throw;
  }
  return ++latest_;
}

void CopyLane::queue(const Copy& copy) {
  const Driver& driver = context_.driver();
  for (std::size_t offset = 0; offset < copy.size_bytes;) {
    std::byte* host = copy.host + offset;
    const std::size_t pinned_bytes = pinned_.bytes_from(host);
    if (pinned_bytes == 0)
      throw Fault(Fault::Kind::invariant, text("host address ", number_of(host), " is not pinned"));
    const std::size_t size_bytes = std::min({chunk_bytes_, pinned_bytes, copy.size_bytes - offset});
    if (direction_ == Direction::out) {
      driver.cuMemcpyDtoHAsync("copying to the host", host, copy.device + offset, size_bytes, stream_.handle());
    } else {
      driver.cuMemcpyHtoDAsync("copying to the device", copy.device + offset, host, size_bytes, stream_.handle());
    }
    offset += size_bytes;
  }
}

bool CopyLane::done(std::uint64_t number) {
  if (number <= completed()) return true;
  if (number > latest_) throw Fault(Fault::Kind::invariant, text("copy ", number, " was never queued"));
  if (!recording_) retire();  // the driver refuses queries about events while it records
  return number <= completed();
}

EventPointer CopyLane::end_of(std::uint64_t number) {
  return done(number) ? nullptr : queued_[number - completed() - 1].end.handle();
}

void CopyLane::add_users(Address device, std::size_t size_bytes, std::vector<EventPointer>& events) const {
  for (const auto& [copy, begin, end] : queued_) {
    if (overlap(copy.device, copy.size_bytes, device, size_bytes)) events.push_back(end.handle());
  }
}

void CopyLane::add_users(const std::byte* host, std::size_t size_bytes, std::vector<EventPointer>& events) const {
  for (const auto& [copy, begin, end] : queued_) {
    if (overlap(number_of(copy.host), copy.size_bytes, number_of(host), size_bytes)) events.push_back(end.handle());
  }
}

void CopyLane::begin_recording() {
  if (!queued_.empty()) throw Fault(Fault::Kind::invariant, "recording begins while a copy is under way");
  recording_ = true;
}

std::uint64_t CopyLane::end_recording() noexcept {
  if (!recording_) return 0;
  std::uint64_t recorded_bytes = 0;
  for (const Queued& recorded : queued_) recorded_bytes += recorded.copy.size_bytes;
  queued_.clear();
  recording_ = false;
  return recorded_bytes;
}

void CopyLane::count(std::uint64_t size_bytes) noexcept {
  const std::uint64_t known_bytes = counters_.reserved_bytes;
  if (known_bytes != 0) {
    const double ns_per_byte = static_cast<double>(counters_.reserved_ns) / static_cast<double>(known_bytes);
    counters_.reserved_ns += static_cast<std::uint64_t>(ns_per_byte * static_cast<double>(size_bytes));
  }
  counters_.reserved_bytes += size_bytes;
}

void CopyLane::finish() noexcept { context_.driver().cuStreamSynchronize.answer(stream_.handle()); }

// Finished copies are always at the front of the queue, because a stream is first in, first out.
void CopyLane::retire() {
  const Driver& driver = context_.driver();
  while (!queued_.empty()) {
    const Queued& first = queued_.front();
    const Result result = driver.cuEventQuery.answer(first.end.handle());
    if (result == Result::not_ready) return;
    if (result != Result::success) driver.fail("waiting for a copy", driver.cuEventQuery.name(), result);
    float passed_ms = 0;
    driver.cuEventElapsedTime("timing a copy", &passed_ms, first.begin.handle(), first.end.handle());
    counters_.reserved_ns += static_cast<std::uint64_t>(static_cast<double>(passed_ms) * 1e6);
    counters_.reserved_bytes += first.copy.size_bytes;
    queued_.pop_front();
  }
}

}  // namespace tensile::cuda
