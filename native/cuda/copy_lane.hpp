// A queue of copies in one direction between pinned host memory and the device, with its own stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "cuda/resources.hpp"
#include "ledger_layout.hpp"

namespace tensile::cuda {

// First in, first out, concurrent with the device's computation. Only `finish` waits. The lane copies in chunks:
// between two chunks the device's copy engine can serve another process. Used by one thread at a time, with the
// context current.
class CopyLane {
 public:
  enum class Direction { out, in };

  struct Copy {
    Address device;
    std::byte* host;  // only read where the direction is in
    std::size_t size_bytes;
  };

  // `pinned` contains all host ranges to be copied; `counters` are the ledger's counters for this direction.
  CopyLane(const PrimaryContext& context, Direction direction, std::size_t chunk_bytes, const PinnedRanges& pinned,
           layout::Lane& counters);
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  // Queue a copy that starts after all earlier copies of this lane and after these events. Returns its number, from 1
  // on.
  std::uint64_t submit(const Copy& copy, std::span<const EventPointer> after);

  // Raises an invariant fault for a number that was never returned.
  bool done(std::uint64_t number);
  std::uint64_t latest() const noexcept { return latest_; }

  // Return the event at the end of a copy; null once the copy is done.
  EventPointer end_of(std::uint64_t number);

  // Remove finished copies from the queue, and count their bytes and time.
  void retire();

  // Append the end events of all queued copies that use any of this memory.
  void add_users(Address device, std::size_t size_bytes, std::vector<EventPointer>& events) const;
  void add_users(const std::byte* host, std::size_t size_bytes, std::vector<EventPointer>& events) const;

  // From now on the driver records copies into a graph, with the computation, instead of making them. All queued
  // copies must have been retired, because the driver refuses queries about events while it records.
  void begin_recording();

  // From now on copies are made again. The recorded copies cannot be waited for. Returns their bytes.
  std::uint64_t end_recording() noexcept;

  // Count the bytes of recorded copies that were made once more. Their time is not measured; it is estimated by the
  // average rate of the copies measured so far.
  void count(std::uint64_t size_bytes) noexcept;

  StreamPointer stream() const noexcept { return stream_.handle(); }

  // Block until all queued copies have ended; errors of the driver are ignored.
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
