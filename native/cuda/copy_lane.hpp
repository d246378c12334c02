// Copies in one direction between pinned host memory and the device, queued on a stream of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "cuda/resources.hpp"
#include "ledger_layout.hpp"

namespace tensile::cuda {

// First in, first out, beside whatever the device computes; nothing here waits but `finish`. A copy goes in chunks:
// the device's copy engine turns to another process's copies between two of them. Used by one thread at a time, with
// the context current.
class CopyLane {
 public:
  enum class Direction { out, in };

  struct Copy {
    Address device;
    std::byte* host;  // only read where the direction is in
    std::size_t size_bytes;
  };

  // `pinned` holds every host range; `counters` are those of this direction in the ledger.
  CopyLane(const PrimaryContext& context, Direction direction, std::size_t chunk_bytes, const PinnedRanges& pinned,
           layout::Lane& counters);
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  // Queue a copy that starts after all that was queued here and after these events. Returns its number, from 1 on.
  std::uint64_t submit(const Copy& copy, std::span<const EventPointer> after);

  // Raises an invariant fault for a number that was never given out.
  bool done(std::uint64_t number);
  std::uint64_t latest() const noexcept { return latest_; }

  // The event at the end of a copy; null once the copy is done.
  EventPointer end_of(std::uint64_t number);

  // Forget the copies that are done.
  void retire();

  // Add the events at the end of those queued copies that use any of this memory.
  void add_users(Address device, std::size_t size_bytes, std::vector<EventPointer>& found) const;
  void add_users(const std::byte* host, std::size_t size_bytes, std::vector<EventPointer>& found) const;

  // From now on copies are recorded by the driver, as part of what is computed, and not made. Nothing may be queued,
  // as somebody has seen (`retire`): the driver answers nothing about it any more.
  void begin_recording();

  // Copies are made again; those that were recorded are nobody's to wait for. Returns their bytes.
  std::uint64_t end_recording() noexcept;

  // Such copies were made once more, their time unmeasured: it counts as that of what was measured before.
  void count(std::uint64_t size_bytes) noexcept;

  StreamPointer stream() const noexcept { return stream_.handle(); }

  // Block until nothing is queued, whatever the driver says of it.
  void finish() noexcept;

 private:
  struct Queued {
    Copy copy;
    Event begin;
    Event end;
  };

  void queue(const Copy& copy);
  std::uint64_t completed() const noexcept { return latest_ - queued_.size(); }

  const PrimaryContext& context_;
  const Direction direction_;
  const std::size_t chunk_bytes_;
  const PinnedRanges& pinned_;
  layout::Lane& counters_;
  EventPool events_;
  Stream stream_;
  std::uint64_t latest_ = 0;
  std::deque<Queued> queued_;
  bool recording_ = false;
};

}  // namespace tensile::cuda
