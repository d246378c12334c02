#include "lane_clock.hpp"

#include <time.h>

#include <algorithm>
#include <cerrno>

namespace tensile {
namespace {

constexpr std::uint64_t ns_per_s = 1'000'000'000;
constexpr std::uint64_t oversleep_ns = 80'000;  // a sleeping thread may wake up this much late

}  // namespace

std::uint64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * ns_per_s + static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t LaneClock::reserve(std::uint64_t ready_ns, std::uint64_t size_bytes) noexcept {
  const std::uint64_t length_ns = (size_bytes * ns_per_s + lane_.bytes_per_s - 1) / lane_.bytes_per_s;
  std::uint64_t free_ns = lane_.free_ns.load();
  std::uint64_t end_ns = 0;
  do {
    end_ns = std::max(ready_ns, free_ns) + length_ns;
  } while (!lane_.free_ns.compare_exchange_weak(free_ns, end_ns));
  lane_.reserved_ns += length_ns;
  lane_.reserved_bytes += size_bytes;
  return end_ns;
}

void LaneClock::count(std::uint64_t taken_ns, std::uint64_t size_bytes) noexcept {
  lane_.free_ns = now_ns();
  lane_.reserved_ns += taken_ns;
  lane_.reserved_bytes += size_bytes;
}

void LaneClock::sleep_until(std::uint64_t until_ns) noexcept {
  if (until_ns <= now_ns()) return;
  const timespec until{static_cast<time_t>(until_ns / ns_per_s), static_cast<long>(until_ns % ns_per_s)};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void LaneClock::be_at(std::uint64_t until_ns) noexcept {
  if (until_ns > oversleep_ns) sleep_until(until_ns - oversleep_ns);
  while (now_ns() < until_ns) {
  }
}

}  // namespace tensile
