// A queue of copies in one direction between host and device, with its own thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "lane_clock.hpp"

namespace tensile {

// First in, first out. The lane copies in chunks, so that a job never occupies the link for longer than one chunk
// while another job waits. A lane without copies costs no time: its thread sleeps. If a copy fails, every later call
// of `done` or `wait_for` raises its fault, because the bytes to be copied are lost.
//
// After fork() the child's lane refuses every call, and its destructor does not wait for the thread, which the child
// does not have.
class Lane {
 public:
  enum class Pace {
    link,  // no faster than the link's clock allows
    none,  // as fast as the machine can copy
  };

  // The function that copies bytes, and its pace. `copy` may raise a fault. Chunks are as large as the clock says
  // unless their size is given.
  struct Engine {
    std::function<void(std::byte* to, const std::byte* from, std::size_t size_bytes)> copy;
    Pace pace;
    std::optional<std::size_t> chunk_bytes = std::nullopt;
  };

  // `name` is the name of the thread, at most 15 characters.
  Lane(const char* name, LaneClock clock, Engine engine);
  ~Lane();  // finishes the queued copies
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Returns at once with the copy's number, counted from 1. Both ranges must outlive the copy.
  std::uint64_t submit(std::byte* to, const std::byte* from, std::size_t size_bytes);

  // Both raise an invariant fault for a number that was never returned, and the fault of the first copy that failed.
  bool done(std::uint64_t number) const;
  bool wait_for(std::uint64_t number, std::chrono::nanoseconds limit);

  // The number of the latest copy, 0 before the first.
  std::uint64_t latest() const;

  // Finish the queued copies and end the thread. No copy can be submitted afterwards.
  void close() noexcept;

 private:
  struct State;
  State& own_state() const;

  std::unique_ptr<State> state_;
};

}  // namespace tensile
