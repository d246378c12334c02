// The time of one link between host and device, shared by all processes that copy over it.
#pragma once

#include <cstdint>

#include "ledger_layout.hpp"

namespace tensile {

// CLOCK_MONOTONIC, which all processes of a machine share.
std::uint64_t now_ns() noexcept;

class LaneClock {
 public:
  explicit LaneClock(layout::Lane& lane) noexcept : lane_(lane) {}

  // Reserve the link for these bytes, from `ready_ns` on or once all that was reserved before has passed; returns
  // when they will have passed. `ready_ns` is when the bytes could have gone, which may be a little while ago: a
  // copy engine would have started them then, however late our thread woke up.
  std::uint64_t reserve(std::uint64_t ready_ns, std::uint64_t size_bytes) noexcept;

  // Note a copy that took as long as it took.
  void count(std::uint64_t taken_ns, std::uint64_t size_bytes) noexcept;

  static void sleep_until(std::uint64_t until_ns) noexcept;

  // The same to within a microsecond: the last of it awake.
  static void be_at(std::uint64_t until_ns) noexcept;

 private:
  layout::Lane& lane_;
};

}  // namespace tensile
