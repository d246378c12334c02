#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "check.hpp"
#include "fault.hpp"
#include "lane.hpp"

using namespace tensile;
using namespace std::chrono_literals;

namespace {

layout::Lane link_of(std::uint64_t bytes_per_s) { return {bytes_per_s, 0, 0, 0}; }

void copy(std::byte* to, const std::byte* from, std::size_t size_bytes) { std::memcpy(to, from, size_bytes); }

Lane::Engine paced(std::size_t chunk_bytes) { return {copy, Lane::Pace::link, chunk_bytes}; }

std::vector<std::byte> pattern(std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t i = 0; i < size_bytes; ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
  return bytes;
}

}  // namespace

TEST(copies_of_every_size_are_complete) {
  layout::Lane link = link_of(1'000'000'000'000);
  Lane lane("test", LaneClock(link), paced(1000));
  std::uint64_t total_bytes = 0;
  for (const std::size_t size_bytes : {1UL, 7UL, 999UL, 1000UL, 1001UL, 123457UL}) {
    const std::vector<std::byte> from = pattern(size_bytes);
    std::vector<std::byte> to(size_bytes);
    CHECK(lane.wait_for(lane.submit(to.data(), from.data(), size_bytes), 60s));
    CHECK(to == from);
    total_bytes += size_bytes;
  }
  CHECK_EQUAL(link.reserved_bytes.load(), total_bytes);
}

TEST(chunks_are_what_a_link_carries_in_a_quarter_of_a_millisecond) {
  layout::Lane slow = link_of(1);
  layout::Lane usual = link_of(std::uint64_t{2} << 30);
  layout::Lane fast = link_of(std::uint64_t{1} << 60);
  CHECK_EQUAL(LaneClock(slow).chunk_bytes(), std::size_t{1} << 17);
  CHECK_EQUAL(LaneClock(usual).chunk_bytes(), (std::size_t{2} << 30) / 4000);
  CHECK_EQUAL(LaneClock(fast).chunk_bytes(), std::size_t{1} << 30);
  Lane lane("test", LaneClock(usual), {copy, Lane::Pace::link});
  const std::vector<std::byte> from = pattern(2 * LaneClock(usual).chunk_bytes() + 1);
  std::vector<std::byte> to(from.size());
  CHECK(lane.wait_for(lane.submit(to.data(), from.data(), from.size()), 60s) && to == from);
}

TEST(copies_are_done_in_order_at_the_links_rate) {
  layout::Lane link = link_of(100'000'000);
  Lane lane("test", LaneClock(link), paced(4096));
  const std::vector<std::byte> from = pattern(100'000);
  std::vector<std::byte> to(from.size());
  const std::uint64_t start_ns = now_ns();
  std::uint64_t last = 0;
  for (std::uint64_t copy = 1; copy <= 10; ++copy) {
    last = lane.submit(to.data(), from.data(), from.size());
    CHECK_EQUAL(last, copy);
  }
  const bool early = lane.done(last) || lane.wait_for(last, 1ms);
  CHECK(!early || now_ns() - start_ns >= 10'000'000);  // this process may have been away from the processor
  CHECK(lane.wait_for(last, 60s));
  CHECK(lane.done(1) && lane.done(last));
  CHECK(now_ns() - start_ns >= 10'000'000);
  CHECK(link.reserved_ns.load() >= 10'000'000 && link.reserved_ns.load() < 10'001'000);
  CHECK(link.free_ns.load() >= start_ns + link.reserved_ns.load());
}

TEST(a_link_that_never_idles_loses_no_time_between_copies) {
  layout::Lane link = link_of(100'000'000);
  Lane lane("test", LaneClock(link), paced(4096));
  const std::vector<std::byte> from = pattern(4096);
  std::vector<std::byte> to(from.size());
  const std::uint64_t before_ns = now_ns();
  std::uint64_t last = 0;
  for (int copy = 0; copy < 100; ++copy) last = lane.submit(to.data(), from.data(), from.size());
  const std::uint64_t queued_ns = now_ns();
  CHECK(lane.wait_for(last, 60s));
  CHECK(queued_ns - before_ns > 100 * 40'960 || link.free_ns.load() <= queued_ns + link.reserved_ns.load());
}

TEST(two_lanes_on_one_link_share_its_time) {
  layout::Lane link = link_of(100'000'000);
  const std::vector<std::byte> from = pattern(500'000);
  std::vector<std::byte> to_a(from.size());
  std::vector<std::byte> to_b(from.size());
  const std::uint64_t start_ns = now_ns();
  {
    Lane a("a", LaneClock(link), paced(10'000));
    Lane b("b", LaneClock(link), paced(10'000));
    a.submit(to_a.data(), from.data(), from.size());
    b.submit(to_b.data(), from.data(), from.size());
  }
  CHECK(to_a == from && to_b == from);
  CHECK_EQUAL(link.reserved_ns.load(), 10'000'000U);
  CHECK(link.free_ns.load() >= start_ns + 10'000'000);
}

TEST(a_reservation_starts_when_its_copy_is_ready_or_the_earlier_reservation_ends) {
  layout::Lane link = link_of(1'000'000'000);
  LaneClock clock(link);
  CHECK_EQUAL(clock.reserve(1000, 50), 1050U);
  CHECK_EQUAL(clock.reserve(1000, 50), 1100U);
  CHECK_EQUAL(clock.reserve(5000, 1), 5001U);
  link.bytes_per_s = 3'000'000'000;
  CHECK_EQUAL(clock.reserve(9000, 1), 9001U);  // a third of a nanosecond, rounded up
  CHECK_EQUAL(link.reserved_bytes.load(), 102U);
  CHECK_EQUAL(link.reserved_ns.load(), 102U);
}

TEST(many_threads_may_queue_and_wait) {
  layout::Lane link = link_of(1'000'000'000'000);
  Lane lane("test", LaneClock(link), paced(512));
  const std::vector<std::byte> from = pattern(2000);
  std::vector<std::vector<std::byte>> to(4, std::vector<std::byte>(from.size()));
  std::vector<std::thread> threads;
  for (std::vector<std::byte>& target : to) {
    threads.emplace_back([&] {
      for (int copy = 0; copy < 200; ++copy) {
        CHECK(lane.wait_for(lane.submit(target.data(), from.data(), from.size()), 60s));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::all_of(to.begin(), to.end(), [&](const auto& target) { return target == from; }));
  CHECK_EQUAL(lane.latest(), 800U);
}

TEST(a_closed_lane_has_finished_its_copies_and_refuses_new_ones) {
  layout::Lane link = link_of(100'000'000);
  Lane lane("test", LaneClock(link), paced(1000));
  const std::vector<std::byte> from = pattern(50'000);
  std::vector<std::byte> to(from.size());
  const std::uint64_t number = lane.submit(to.data(), from.data(), from.size());
  lane.close();
  lane.close();
  CHECK(lane.done(number) && to == from);
  CHECK_FAULT(invariant, "the device is closed", lane.submit(to.data(), from.data(), 1));
  CHECK_FAULT(invariant, "copy 2 was never queued", lane.done(2));
}

TEST(wrong_copies_are_refused) {
  layout::Lane link = link_of(1);
  Lane lane("test", LaneClock(link), paced(1000));
  std::byte byte{};
  CHECK_FAULT(invariant, "a copy of 0 bytes", lane.submit(&byte, &byte, 0));
  CHECK_FAULT(invariant, "chunks of 0 bytes", Lane("test", LaneClock(link), paced(0)));
  CHECK(lane.done(0));
}

TEST(a_forked_child_releases_its_parents_lane) {
  layout::Lane link = link_of(1'000'000);
  auto lane = std::make_unique<Lane>("test", LaneClock(link), paced(1000));
  const std::vector<std::byte> from = pattern(20'000);
  std::vector<std::byte> to(from.size());
  const std::uint64_t number = lane->submit(to.data(), from.data(), from.size());
  const pid_t child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      lane->submit(to.data(), from.data(), 1);
    } catch (const Fault& fault) {
      refused = fault.kind() == Fault::Kind::invariant;
    }
    lane.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(lane->wait_for(number, 60s));
  CHECK(to == from);
}

TEST(an_unpaced_lane_copies_at_full_speed_and_counts_the_time) {
  layout::Lane link = link_of(1);  // one byte per second: a paced lane would not finish
  Lane lane("test", LaneClock(link), {copy, Lane::Pace::none});
  const std::vector<std::byte> from = pattern(1'000'000);
  std::vector<std::byte> to(from.size());
  CHECK(lane.wait_for(lane.submit(to.data(), from.data(), from.size()), 60s));
  CHECK(to == from);
  CHECK_EQUAL(link.reserved_bytes.load(), from.size());
  CHECK(link.reserved_ns.load() > 0);
}

TEST(a_failed_copy_is_reported_to_its_waiter_and_to_every_later_caller) {
  layout::Lane link = link_of(1'000'000'000);
  int copies = 0;
  const auto refuse = [&](std::byte*, const std::byte*, std::size_t) {
    if (++copies == 2) throw Fault(Fault::Kind::lost, "the disk is full");
  };
  Lane lane("test", LaneClock(link), {refuse, Lane::Pace::none});
  std::byte source{}, target{};
  CHECK(lane.wait_for(lane.submit(&target, &source, 1), 60s));
  const std::uint64_t failing = lane.submit(&target, &source, 1);
  const std::uint64_t after = lane.submit(&target, &source, 1);
  CHECK_FAULT(lost, "the disk is full", lane.wait_for(failing, 60s));
  CHECK_FAULT(lost, "the disk is full", lane.wait_for(after, 60s));
  CHECK_FAULT(lost, "the disk is full", lane.done(failing));
  CHECK_EQUAL(copies, 2);
}
