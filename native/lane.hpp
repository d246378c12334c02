// Copies in one direction between host and device, on a thread of their own.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "lane_clock.hpp"

namespace tensile {

// First in, first out. A copy goes in chunks, so that a job never holds the link for longer than one of them while
// another waits. A lane without copies costs nothing: its thread sleeps. Where a copy fails, whoever waits for it or
// asks whether it is done is told, and so is everybody afterwards: what was to be copied is lost.
//
// After fork() the child's lane refuses everything, and its destructor lets go without waiting for a thread that
// the child does not have.
class Lane {
 public:
  enum class Pace {
    link,  // no faster than the link's clock says
    none,  // as fast as the bytes can be moved
  };

  // What moves bytes. `copy` may raise a fault.
  struct Engine {
    std::function<void(std::byte* to, const std::byte* from, std::size_t size_bytes)> copy;
    Pace pace;
    std::size_t chunk_bytes = std::size_t{1} << 20;
  };

  // `name` is the thread's, at most 15 characters.
  Lane(const char* name, LaneClock clock, Engine engine);
  ~Lane();  // finishes what is queued
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Returns at once with the copy's number, counted from 1. Both ranges must outlive the copy.
  std::uint64_t submit(std::byte* to, const std::byte* from, std::size_t size_bytes);

  // All raise an invariant fault for a number that was never given out, and the fault of the first copy that failed.
  bool done(std::uint64_t number) const;
  bool wait_for(std::uint64_t number, std::chrono::nanoseconds limit);

  // The number of the latest copy, 0 before the first.
  std::uint64_t latest() const;

  // Finish what is queued and end the thread; nothing can be submitted afterwards.
  void close() noexcept;

 private:
  struct State;
  State& here() const;

  std::unique_ptr<State> state_;
};

}  // namespace tensile
