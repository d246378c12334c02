// Owners of what a process holds of a CUDA device: its context, streams, events and pinned host memory.
//
// A destructor never throws: what the driver answers to a release is not looked at, since a release that fails
// reports the error of an earlier launch, or a device that is gone with all that was on it.
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

// One device's primary context: the one that torch's runtime uses too.
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

// Makes a context this thread's current one, and afterwards again what was before: any thread may call us.
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

// Owns a stream that does not wait for the default stream, nor lets it wait.
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

// One event of a pool, which gets it back. Given back while a stream still waits for it, it may be recorded again:
// a wait means what was recorded when the wait was queued.
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

// Events for reuse, so that none is made inside an iteration. Used by one thread at a time; the context must be
// current for `take`.
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
  std::vector<EventPointer> spare_;  // has room for all that were made: giving back never allocates
};

// Host memory that the device's copy engines reach: ranges of a host pool, registered as the pool grows.
class PinnedRanges {
 public:
  explicit PinnedRanges(const PrimaryContext& context) : context_(context) {}
  ~PinnedRanges();
  PinnedRanges(const PinnedRanges&) = delete;
  PinnedRanges& operator=(const PinnedRanges&) = delete;

  // Give a range memory and pin it.
  void add(std::byte* address, std::size_t size_bytes);

  // From here on nothing is pinned any more, and the memory goes back. What no copy uses.
  void remove(std::byte* address, std::size_t size_bytes);

  // How far the registration that holds this address goes: a copy must not cross into the next one, since the
  // driver may refuse ranges that lie in two.
  std::size_t bytes_from(const std::byte* address) const;

 private:
  void pin(std::byte* address, std::size_t size_bytes);

  const PrimaryContext& context_;
  mutable std::mutex mutex_;
  std::map<std::byte*, std::size_t> ranges_;
};

}  // namespace tensile::cuda
