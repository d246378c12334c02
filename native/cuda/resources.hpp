// Owners of a process's CUDA resources: context, streams, events and pinned host memory.
//
// Destructors never throw. They ignore the result of a release, because a failed release reports the error of an
// earlier launch, or that the device is gone together with the resource.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "cuda/driver.hpp"

namespace tensile::cuda {

// The primary context of a device, which torch's runtime uses too.
class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const Driver& driver() const noexcept { return driver_; }
  Context handle() const noexcept { return context_; }

 private:
  void sleep_in_waits(const std::string& purpose);

  const Driver& driver_;
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
};

// Makes a context current in this thread and restores the previous one at the end: any thread may call this library.
class Current {
 public:
  explicit Current(const PrimaryContext& context);
  Current(const PrimaryContext& context, std::nothrow_t) noexcept;  // for destructors
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = true;
};

// Owns a stream that is not synchronized with the default stream.
class Stream {
 public:
  explicit Stream(const PrimaryContext& context);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  StreamPointer handle() const noexcept { return stream_; }

 private:
  const PrimaryContext& context_;
  StreamPointer stream_ = nullptr;
};

class EventPool;

// One event of a pool; the destructor returns it to the pool. An event may be recorded again while a stream still
// waits for it, because a wait refers to what was recorded when the wait was queued.
class Event {
 public:
  Event() = default;
  Event(EventPool& pool, EventPointer event) noexcept : pool_(&pool), event_(event) {}
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept : pool_(other.pool_), event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }

  EventPointer handle() const noexcept { return event_; }

 private:
  EventPool* pool_ = nullptr;
  EventPointer event_ = nullptr;
};

// Reuses events, so that iterations create none. Used by one thread at a time; `take` needs the context to be
// current.
class EventPool {
 public:
  explicit EventPool(const PrimaryContext& context, unsigned int flags = event_untimed)
      : context_(context), flags_(flags) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  Event take();

 private:
  friend class Event;

  const PrimaryContext& context_;
  const unsigned int flags_;
  std::vector<EventPointer> made_;
  std::vector<EventPointer> spare_;  // has capacity for all events, so that returning an event never allocates
};

// Pinned host memory, which the device's copy engines can access: ranges of a host pool, registered as the pool
// grows.
class PinnedRanges {
 public:
  explicit PinnedRanges(const PrimaryContext& context) : context_(context) {}
  ~PinnedRanges();
  PinnedRanges(const PinnedRanges&) = delete;
  PinnedRanges& operator=(const PinnedRanges&) = delete;

  // Populate a range with memory and pin it.
  void add(std::byte* address, std::size_t size_bytes);

  // Unpin all memory from this address on, and give it back. No copy may use it.
  void remove(std::byte* address, std::size_t size_bytes);

  // Return the bytes from this address to the end of the registration that contains it, 0 if none does. A copy must
  // not cross into the next registration, because the driver may refuse a range that lies in two.
  std::size_t bytes_from(const std::byte* address) const;

 private:
  void pin(std::byte* address, std::size_t size_bytes);

  const PrimaryContext& context_;
  mutable std::mutex mutex_;
  std::map<std::byte*, std::size_t> ranges_;
};

}  // namespace tensile::cuda
