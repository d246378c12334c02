#include "lane_clock.hpp"

#include <time.h>

#include <algorithm>
#include <cerrno>

namespace tensile {
namespace {

constexpr std::uint64_t ns_per_s = 1'000'000'000;
constexpr std::uint64_t chunks_per_s = 4000;
constexpr std::uint64_t least_chunk_bytes = std::uint64_t{1} << 17;
constexpr std::uint64_t most_chunk_bytes = std::uint64_t{1} << 30;

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

std::size_t LaneClock::chunk_bytes() const noexcept {
  return std::clamp(lane_.bytes_per_s / chunks_per_s, least_chunk_bytes, most_chunk_bytes);
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

// A busy wait takes a processor from operators. Threads wake up 20 us late, one in twenty more than 40 us. So what a
// thread waits for follows its own lateness: up at once, and down by a part of the difference.
void LaneClock::be_at(std::uint64_t until_ns) noexcept {
  if (const std::uint64_t wake_ns = until_ns - std::min(until_ns, late_ns_); wake_ns > now_ns()) {
    sleep_until(wake_ns);
    const std::uint64_t late_ns = std::min(now_ns() - wake_ns, most_late_ns);
    late_ns_ = std::max(late_ns, late_ns_ - (late_ns_ - std::min(late_ns, late_ns_)) / 16);
  }
  while (now_ns() < until_ns) {
  }
}

}  // namespace tensile
