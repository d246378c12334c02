// The clock of one link between host and device, shared by all processes that copy over the link. It can emulate
// a link of limited bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ledger_layout.hpp"

namespace tensile {

// Return the time of CLOCK_MONOTONIC, which all processes of a machine share.
std::uint64_t now_ns() noexcept;

class LaneClock {
 public:
  explicit LaneClock(layout::Lane& lane) noexcept : lane_(lane) {}

  // Reserve the link for these bytes, from `ready_ns` on or from the end of all earlier reservations, whichever is
  // later. Returns the end of the transfer. `ready_ns` is when the bytes were ready, which may be in the recent past:
  // a copy engine would have started then, even if our thread woke up late.
  std::uint64_t reserve(std::uint64_t ready_ns, std::uint64_t size_bytes) noexcept;

  // The usual size of a chunk: what the link carries in 250 us, at least 128 KiB. Between two chunks the thread
  // sleeps, and waking it up takes 13 us of a processor. At 2 GiB/s, copies in chunks of 128 KiB take 0.16 ms of a
  // processor for each MiB, in chunks of 512 KiB 0.08 ms, and in chunks of 16 MiB 0.06 ms.
  std::size_t chunk_bytes() const noexcept;

  // Count a copy whose duration was measured.
  void count(std::uint64_t taken_ns, std::uint64_t size_bytes) noexcept;

  static void sleep_until(std::uint64_t until_ns) noexcept;

  // Wait until this time to within a microsecond, as a rule: the last part is a busy wait, for about as long as the
  // thread that calls this has lately woken up late.
  void be_at(std::uint64_t until_ns) noexcept;

 private:
  layout::Lane& lane_;
  std::uint64_t late_ns_ = most_late_ns;

  static constexpr std::uint64_t most_late_ns = 80'000;
};

}  // namespace tensile
