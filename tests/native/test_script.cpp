#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "check.hpp"
#include "fault.hpp"
#include "private_arena.hpp"
#include "script.hpp"

using namespace tensile;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

int shim(const tensile_arena_hook* /*hook*/) { return 0; }

// A script, driven as the shim and a program drive it.
struct Driven {
  PrivateArena arena{8 * mib};
  Script script{*arena.hook(), &shim};

  std::uintptr_t allocate(std::size_t size_bytes) {
    return reinterpret_cast<std::uintptr_t>(script.hook()->allocate(script.hook()->context, size_bytes));
  }
  int release(std::uintptr_t address) {
    return script.hook()->release(script.hook()->context, reinterpret_cast<void*>(address));
  }
};

// Position 0 has two allocations, position 1 has none, and position 2 has one that overlaps both.
Sheet sheet() { return {{0, 2, 2, 3}, {{100, 0}, {200, 512}, {1000, 0}}}; }

}  // namespace

TEST(allocations_get_their_planned_address_in_every_iteration) {
  Driven driven;
  const Sheet plan = sheet();
  CHECK(driven.script.reserve(4096));
  const std::uintptr_t block = driven.script.block();
  for (int iteration = 0; iteration < 3; ++iteration) {
    CHECK_EQUAL(driven.script.serve(&plan), 0);
    *driven.script.position() = 0;
    CHECK_EQUAL(driven.allocate(100), block);
    CHECK_EQUAL(driven.allocate(200), block + 512);
    CHECK_EQUAL(driven.release(block), 0);
    CHECK_EQUAL(driven.release(block + 512), 0);
    *driven.script.position() = 2;
    CHECK_EQUAL(driven.allocate(1000), block);
    CHECK_EQUAL(driven.release(block), 0);
    CHECK_EQUAL(driven.script.rest(), 0);
  }
  const ScriptUsage usage = driven.script.usage();
  CHECK_EQUAL(usage.planned, 9U);
  CHECK_EQUAL(usage.unplanned + usage.mismatched + usage.occupied + usage.elsewhere, 0U);
  CHECK_EQUAL(usage.used_bytes, 0U);
  CHECK_EQUAL(usage.high_water_bytes, 1000U);
}

TEST(an_unplanned_size_gets_any_place_and_shifts_no_planned_allocation) {
  Driven driven;
  const Sheet plan = sheet();
  CHECK(driven.script.reserve(4096));
  const std::uintptr_t block = driven.script.block();
  driven.script.serve(&plan);
  const std::uintptr_t odd = driven.allocate(123);
  CHECK(odd != block);
  CHECK_EQUAL(driven.allocate(200), block + 512);  // the first planned allocation does not occur
  const ScriptUsage usage = driven.script.usage();
  CHECK_EQUAL(usage.planned, 1U);
  CHECK_EQUAL(usage.unplanned, 1U);
  CHECK_EQUAL(usage.mismatched, 1U);
}

TEST(whole_pages_of_the_block_without_a_tensor_are_released) {
  Driven driven;
  constexpr std::uint64_t page = 4096;
  CHECK(driven.script.reserve(4 * page));
  const Sheet plan{{0, 2}, {{2 * page + 100, 0}, {page, 3 * page}}};
  driven.script.serve(&plan);
  const std::uintptr_t first = driven.allocate(2 * page + 100);
  const std::uintptr_t second = driven.allocate(page);
  auto* const bytes = reinterpret_cast<volatile unsigned char*>(first);
  for (std::uint64_t k = 0; k < 4 * page; ++k) bytes[k] = 7;
  driven.release(first);
  driven.script.discard(first, 2 * page + 100);
  CHECK_EQUAL(int{bytes[0]} + int{bytes[2 * page - 1]}, 0);
  CHECK_EQUAL(int{bytes[2 * page]} + int{bytes[3 * page]}, 14);  // the rest of the page, and the other tensor
  bool refused = false;
  try {
    driven.script.discard(second, page);
  } catch (const Fault&) {
    refused = true;
  }
  CHECK(refused);
  driven.script.discard(0, page);  // outside the block: ignored
}

TEST(a_live_tensor_at_a_planned_address_is_left_there) {
  Driven driven;
  const Sheet plan = sheet();
  CHECK(driven.script.reserve(4096));
  const std::uintptr_t block = driven.script.block();
  driven.script.serve(&plan);
  driven.allocate(100);
  driven.allocate(200);
  driven.release(block);
  *driven.script.position() = 2;
  CHECK(driven.allocate(1000) != block);  // the second allocation, at 512, is still live
  CHECK_EQUAL(driven.script.usage().occupied, 1U);
}

TEST(positions_and_allocations_beyond_the_sheet_are_unplanned) {
  Driven driven;
  const Sheet plan = sheet();
  driven.script.reserve(4096);
  driven.script.serve(&plan);
  *driven.script.position() = 1;
  CHECK(driven.allocate(100) != 0);
  *driven.script.position() = 3;
  CHECK(driven.allocate(100) != 0);
  *driven.script.position() = ~std::uint64_t{0};
  CHECK(driven.allocate(100) != 0);
  CHECK_EQUAL(driven.script.usage().unplanned, 3U);
  CHECK_EQUAL(driven.script.usage().mismatched, 0U);
}

TEST(without_room_for_the_block_every_allocation_is_unplanned) {
  Driven driven;
  const Sheet plan = sheet();
  CHECK(!driven.script.reserve(9 * mib));
  driven.script.serve(&plan);
  CHECK(driven.allocate(100) != 0);
  CHECK_EQUAL(driven.script.usage().unplanned, 1U);
  CHECK_EQUAL(driven.script.usage().occupied, 0U);
}

TEST(allocations_of_unlisted_sizes_take_the_first_free_place_in_their_positions_room) {
  Driven driven;
  Sheet plan = sheet();
  plan.rooms = {{2048, 1024}, {0, 0}, {0, 0}};
  CHECK(driven.script.reserve(4096));
  const std::uintptr_t block = driven.script.block();
  driven.script.serve(&plan);
  const std::uintptr_t first = driven.allocate(700);
  CHECK_EQUAL(first, block + 1024);
  CHECK_EQUAL(driven.allocate(100), block);
  CHECK_EQUAL(driven.allocate(900), block + 2048);
  CHECK_EQUAL(driven.release(first), 0);
  CHECK_EQUAL(driven.allocate(1024), block + 1024);
  CHECK_EQUAL(driven.allocate(200), block + 512);  // unlisted allocations shift no planned one
  CHECK_EQUAL(driven.script.usage().planned, 5U);
  CHECK_EQUAL(driven.script.usage().unplanned + driven.script.usage().mismatched, 0U);
  CHECK(driven.script.take_excess().empty());
  driven.allocate(300);  // the room is full
  CHECK_EQUAL(driven.script.usage().unplanned, 1U);
  CHECK_EQUAL(driven.script.take_excess().size(), 1U);
}

TEST(a_positions_room_may_lie_in_the_part_of_the_block_that_a_round_lends) {
  Driven driven;
  Sheet plan = sheet();
  plan.rooms = {{2048, 4096}, {0, 0}, {0, 0}};
  CHECK(driven.script.reserve(4096));
  CHECK_EQUAL(driven.script.serve(&plan), 0);
  *driven.script.position() = 0;
  CHECK(driven.allocate(700) != driven.script.block() + 4096);
  driven.script.extend(4096);
  CHECK_EQUAL(driven.allocate(700), driven.script.block() + 4096);
}

TEST(the_most_bytes_beyond_the_plan_are_remembered_by_position) {
  Driven driven;
  const Sheet plan = sheet();
  CHECK(driven.script.reserve(4096));
  driven.script.serve(&plan);
  const std::uintptr_t odd = driven.allocate(1000);
  driven.allocate(300);
  CHECK_EQUAL(driven.release(odd), 0);
  driven.allocate(500);
  driven.allocate(100);  // as planned
  *driven.script.position() = 1;
  CHECK_EQUAL(driven.allocate(9 * mib), 0U);  // no memory at all is left for it
  *driven.script.position() = 3;
  driven.allocate(123);  // no position of the program
  const std::vector<Excess> excess = driven.script.take_excess();
  CHECK_EQUAL(excess.size(), 2U);
  CHECK_EQUAL(excess[0].position, 0U);
  CHECK_EQUAL(excess[0].size_bytes, 1536U);
  CHECK_EQUAL(excess[1].position, 1U);
  CHECK_EQUAL(excess[1].size_bytes, 9 * mib);
  CHECK(driven.script.take_excess().empty());
}

TEST(an_allocation_refused_by_a_full_arena_is_not_counted_as_used) {
  Driven driven;
  driven.script.serve(nullptr);
  CHECK_EQUAL(driven.allocate(9 * mib), 0U);
  CHECK_EQUAL(driven.script.usage().used_bytes, 0U);
  CHECK_EQUAL(driven.script.usage().unplanned, 0U);
}

TEST(an_address_that_is_no_allocation_is_not_released) {
  Driven driven;
  driven.script.serve(nullptr);
  const std::uintptr_t address = driven.allocate(100);
  CHECK(driven.release(address + 64) != 0);
  CHECK_EQUAL(driven.release(address), 0);
  CHECK(driven.release(address) != 0);
}

TEST(a_block_keeps_every_part_with_tensors) {
  Driven driven;
  const Sheet plan{{0, 1, 2}, {{100, 0}, {100, 2 * mib}}};
  CHECK(driven.script.reserve(3 * mib));
  driven.script.serve(&plan);
  const std::uintptr_t low = driven.allocate(100);
  *driven.script.position() = 1;
  const std::uintptr_t high = driven.allocate(100);
  CHECK_EQUAL(high, low + 2 * mib);
  CHECK_FAULT(invariant, "1 tensors are in the part of a block that changes", driven.script.reserve(mib));
  driven.release(high);
  *reinterpret_cast<int*>(low) = 42;
  CHECK(driven.script.reserve(mib));
  CHECK(driven.script.reserve(4 * mib));
  CHECK_EQUAL(*reinterpret_cast<int*>(low), 42);
}

TEST(a_block_is_contiguous_across_other_allocations) {
  Driven driven;
  driven.script.serve(nullptr);
  std::vector<std::uintptr_t> odd;
  for (int i = 0; i < 5; ++i) odd.push_back(driven.allocate(mib + 64));
  for (int i = 0; i < 5; i += 2) driven.release(odd[static_cast<std::size_t>(i)]);
  CHECK(driven.script.reserve(4 * mib + 100));
  auto* const block = reinterpret_cast<std::uint8_t*>(driven.script.block());
  for (std::uint64_t i = 0; i < 4 * mib + 100; i += 1000) block[i] = static_cast<std::uint8_t>(i / 1000);
  bool same = true;
  for (std::uint64_t i = 0; i < 4 * mib + 100; i += 1000) same &= block[i] == static_cast<std::uint8_t>(i / 1000);
  CHECK(same);
  CHECK(!driven.script.reserve(8 * mib));  // two unplanned allocations are in the way
  CHECK(driven.script.reserve(0));
  driven.release(odd[1]);
  driven.release(odd[3]);
  CHECK(driven.script.reserve(8 * mib));
}

TEST(a_recording_has_the_address_and_lifetime_of_each_allocation) {
  Driven driven;
  driven.script.serve(nullptr);
  const std::uintptr_t before = driven.allocate(64);
  driven.script.record();
  const std::uintptr_t first = driven.allocate(100);
  *driven.script.position() = 7;
  const std::uintptr_t second = driven.allocate(200);
  driven.release(first);
  driven.release(before);  // was allocated before the recording: takes no moment of it
  const std::uintptr_t third = driven.allocate(100);
  const std::vector<Record> records = driven.script.recorded();
  CHECK_EQUAL(records.size(), 3U);
  CHECK_EQUAL(records[0].position, 0U);
  CHECK_EQUAL(records[0].size_bytes, 100U);
  CHECK_EQUAL(records[0].address, first);
  CHECK_EQUAL(records[0].made_at, 0U);
  CHECK_EQUAL(records[0].released_at, 2U);
  CHECK_EQUAL(records[1].position, 7U);
  CHECK_EQUAL(records[1].address, second);
  CHECK_EQUAL(records[1].released_at, Record::never);
  CHECK_EQUAL(records[2].address, third);
  CHECK_EQUAL(records[2].made_at, 3U);
}

TEST(other_threads_allocate_and_release_any_memory) {
  Driven driven;
  const Sheet plan = sheet();
  CHECK(driven.script.reserve(4096));
  const std::uintptr_t block = driven.script.block();
  driven.script.serve(&plan);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) driven.release(driven.allocate(100));
    });
  }
  for (int i = 0; i < 1000; ++i) {
    *driven.script.position() = i % 2 == 0 ? 0 : 2;
    const std::uintptr_t address = driven.allocate(i % 2 == 0 ? 100 : 1000);
    CHECK_EQUAL(address, block);
    std::thread([&] { driven.release(address); }).join();
  }
  for (std::thread& thread : threads) thread.join();
  const ScriptUsage usage = driven.script.usage();
  CHECK_EQUAL(usage.planned, 1000U);
  CHECK_EQUAL(usage.elsewhere, 4000U);
  CHECK_EQUAL(usage.used_bytes, 0U);
}

TEST(in_strict_mode_only_live_tensors_of_a_block_are_accessible) {
  Driven driven;
  const Sheet plan{{0, 2, 3}, {{100, 0}, {9000, 512}, {64, 4096}}, {"small", "large", "late"}};
  CHECK(driven.script.reserve(16384));
  driven.script.serve(&plan);
  const std::uintptr_t before = driven.allocate(100);
  driven.script.be_strict("job 7");
  const std::uintptr_t large = driven.allocate(9000);
  CHECK_EQUAL(*reinterpret_cast<std::uint8_t*>(large), 0xDBU);
  *reinterpret_cast<std::uint8_t*>(large + 8999) = 1;
  driven.release(large);
  *driven.script.position() = 1;
  const std::uintptr_t late = driven.allocate(64);
  *reinterpret_cast<std::uint8_t*>(late) = 1;
  CHECK_EQUAL(*reinterpret_cast<std::uint8_t*>(before + 600), 0xDBU);  // readable: live tensors share the page
  CHECK(driven.script.reserve(16384));                                 // as at the start of another program
  *reinterpret_cast<std::uint8_t*>(before) = 2;
  *reinterpret_cast<std::uint8_t*>(late) = 2;
  driven.release(before);
  driven.release(late);
  int ends[2];
  CHECK_EQUAL(::pipe(ends), 0);
  // Let the system read the memory: it reports inaccessible memory as an error, while a fault would end the tests.
  CHECK_EQUAL(::write(ends[1], reinterpret_cast<const void*>(late), 1), -1);
  CHECK_EQUAL(::write(ends[1], reinterpret_cast<const void*>(before), 1), -1);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(words_outside_the_sheet_come_from_lent_memory_and_are_not_counted) {
  Driven driven;
  const Sheet plan = sheet();
  alignas(512) static std::byte words[2048];
  const auto lent = reinterpret_cast<std::uintptr_t>(words);
  CHECK(driven.script.reserve(4096));
  const std::uintptr_t block = driven.script.block();
  driven.script.lend(lent, sizeof(words) - 512);
  CHECK_EQUAL(driven.script.serve(&plan), 0);
  *driven.script.position() = 0;
  CHECK_EQUAL(driven.allocate(100), block);
  CHECK_EQUAL(driven.allocate(8), lent);
  CHECK_EQUAL(driven.release(lent), 0);
  CHECK_EQUAL(driven.allocate(8), lent + 512);  // the first piece is not reused: launches of the recording use it
  CHECK_EQUAL(driven.allocate(200), block + 512);
  CHECK_EQUAL(driven.script.usage().unplanned, 0U);
  CHECK_EQUAL(driven.script.usage().used_bytes, 300U);
  CHECK_EQUAL(driven.allocate(64), lent + 1024);
  const std::uintptr_t beyond = driven.allocate(8);
  CHECK(beyond != 0 && (beyond < lent || beyond >= lent + sizeof(words)));
  CHECK_EQUAL(driven.release(beyond), 0);
  driven.script.lend(0, 0);
  CHECK_EQUAL(driven.release(lent + 512), 0);  // the memory that was lent is still known
  driven.script.lend(lent, 0);
  CHECK_EQUAL(driven.release(lent + 512), -1);
  CHECK_EQUAL(driven.release(block), 0);
  CHECK_EQUAL(driven.release(block + 512), 0);
  CHECK_EQUAL(driven.script.rest(), 0);
}
