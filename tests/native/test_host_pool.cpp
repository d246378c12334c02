#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"
#include "host_pool.hpp"

using namespace tensile;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

}  // namespace

TEST(buffers_are_aligned_apart_and_writable) {
  HostPool pool(4 * mib);
  std::vector<std::byte*> buffers;
  for (const std::uint64_t size_bytes : {1UL, 64UL, 65UL, 1000UL, 100'000UL}) {
    std::byte* buffer = pool.allocate(size_bytes);
    CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(buffer) % 64, 0U);
    CHECK_EQUAL(pool.size_bytes(buffer), (size_bytes + 63) / 64 * 64);
    std::memset(buffer, 0xA5, size_bytes);
    buffers.push_back(buffer);
  }
  std::sort(buffers.begin(), buffers.end());
  for (std::size_t i = 1; i < buffers.size(); ++i) {
    CHECK(buffers[i - 1] + pool.size_bytes(buffers[i - 1]) <= buffers[i]);
  }
  CHECK_EQUAL(pool.usage().used_bytes, 64U + 64 + 128 + 1024 + 100'032);
}

TEST(a_repeated_size_gets_the_place_that_was_freed) {
  HostPool pool(4 * mib);
  std::byte* small = pool.allocate(1000);
  pool.allocate(64);
  std::byte* large = pool.allocate(50'000);
  pool.allocate(64);
  pool.free(small);
  pool.free(large);
  CHECK(pool.allocate(50'000) == large);
  CHECK(pool.allocate(1000) == small);
}

TEST(free_neighbours_merge) {
  HostPool pool(mib);
  std::vector<std::byte*> quarters;
  for (int quarter = 0; quarter < 4; ++quarter) quarters.push_back(pool.allocate(mib / 4));
  pool.free(quarters[0]);
  pool.free(quarters[2]);
  CHECK_FAULT(memory, "no 524288 bytes in one piece: 524288 of its limit of 1048576 bytes are in use",
              pool.allocate(mib / 2));
  pool.free(quarters[1]);
  CHECK(pool.allocate(3 * mib / 4) == quarters[0]);
}

TEST(the_limit_is_enforced_and_freed_memory_is_reused) {
  HostPool pool(mib);
  std::byte* all = pool.allocate(mib);
  CHECK_FAULT(memory, "1048576 of its limit of 1048576 bytes are in use", pool.allocate(1));
  pool.free(all);
  CHECK_FAULT(memory, "no 1048640 bytes in one piece", pool.allocate(mib + 64));
  CHECK_FAULT(memory, "in one piece", pool.allocate(UINT64_MAX));
  CHECK(pool.allocate(mib) == all);
  CHECK_EQUAL(pool.usage().high_water_bytes, mib);
}

TEST(memory_is_acquired_in_steps_ahead_of_its_use) {
  HostPool pool(64 * mib);
  CHECK_EQUAL(pool.usage().resident_bytes, 0U);
  std::byte* buffer = pool.allocate(20 * mib);
  CHECK_EQUAL(pool.usage().resident_bytes, 32 * mib);
  std::vector<unsigned char> pages(20 * mib / 4096);
  CHECK_EQUAL(::mincore(buffer, 20 * mib, pages.data()), 0);
  CHECK(std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; }));
  pool.allocate(20 * mib);  // 12 MiB are already free at the end
  CHECK_EQUAL(pool.usage().resident_bytes, 48 * mib);
}

TEST(memory_can_be_prepared_and_comes_from_the_supplier) {
  std::vector<std::size_t> supplied;
  HostPool pool(33 * mib + 64, {[&](std::byte* address, std::size_t size_bytes) {
                  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(address) % 4096, 0U);
                  populate(address, size_bytes);
                  supplied.push_back(size_bytes);
                }});
  pool.prepare(17 * mib);
  CHECK_EQUAL(pool.usage().resident_bytes, 32 * mib);
  pool.prepare(mib);
  std::byte* buffer = pool.allocate(32 * mib);
  CHECK(supplied == std::vector<std::size_t>({32 * mib}));
  pool.prepare(64 * mib);
  pool.free(buffer);
  CHECK(pool.allocate(33 * mib + 64) == buffer);
  CHECK(supplied == std::vector<std::size_t>({32 * mib, mib + 4096}));
}

TEST(a_failed_supply_leaves_the_pool_unchanged) {
  bool refuses = true;
  HostPool pool(mib, {[&](std::byte* address, std::size_t size_bytes) {
                  if (refuses) throw Fault(Fault::Kind::memory, "none left");
                  populate(address, size_bytes);
                }});
  CHECK_FAULT(memory, "none left", pool.allocate(1000));
  CHECK_FAULT(memory, "none left", pool.prepare(1000));
  CHECK_EQUAL(pool.usage().resident_bytes, 0U);
  refuses = false;
  pool.allocate(mib);
}

TEST(an_address_that_is_no_live_buffer_is_refused) {
  HostPool pool(mib);
  std::byte* buffer = pool.allocate(1000);
  CHECK_FAULT(invariant, "is not, or is no longer, a buffer of the host pool", pool.free(buffer + 64));
  CHECK_FAULT(invariant, "a host buffer of 0 bytes", pool.allocate(0));
  pool.free(buffer);
  CHECK_FAULT(invariant, "is not, or is no longer, a buffer of the host pool", pool.free(buffer));
  CHECK_FAULT(invariant, "is not, or is no longer, a buffer of the host pool", pool.size_bytes(buffer));
  HostPool none(0);
  CHECK_FAULT(memory, "limit of 0 bytes", none.allocate(1));
}

TEST(packed_buffers_have_no_gaps_and_keep_their_order_and_bytes) {
  HostPool pool(mib);
  std::vector<std::byte*> buffers;
  for (int number = 0; number < 4; ++number) {
    buffers.push_back(pool.allocate(100'000));
    std::memset(buffers.back(), number, 100'000);
  }
  pool.free(buffers[0]);
  pool.free(buffers[2]);
  const std::vector<HostMove> moved = pool.pack();
  CHECK_EQUAL(moved.size(), 2U);
  for (std::size_t place = 0; place < 2; ++place) {
    std::byte* const old = buffers[2 * place + 1];
    const auto entry =
        std::find_if(moved.begin(), moved.end(), [&](const HostMove& move) { return move.from == old; });
    CHECK(entry != moved.end() && entry->to == buffers[0] + place * pool.size_bytes(entry->to));
    CHECK_EQUAL(std::count(entry->to, entry->to + 100'000, static_cast<std::byte>(2 * place + 1)), 100'000);
    pool.free(entry->to);
  }
  CHECK(pool.pack().empty());
  CHECK(pool.allocate(mib) == buffers[0]);
}

TEST(a_pool_is_fitted_to_the_requested_room_and_returns_the_rest) {
  std::uint64_t acquired_bytes = 0;
  HostPool pool(8 * mib, {[&](std::byte* address, std::size_t size_bytes) {
                            populate(address, size_bytes);
                            acquired_bytes += size_bytes;
                          },
                          [&](std::byte* address, std::size_t size_bytes) {
                            discard(address, size_bytes);
                            acquired_bytes -= size_bytes;
                          }});
  std::byte* const first = pool.allocate(mib);
  CHECK_EQUAL(acquired_bytes, 8 * mib);  // acquires a whole step, but at most the limit
  std::memset(first, 7, mib);
  pool.resize_tail(5000);
  CHECK_EQUAL(acquired_bytes, mib + 8192);
  CHECK_EQUAL(pool.usage().resident_bytes, mib + 8192);
  CHECK_EQUAL(std::count(first, first + mib, std::byte{7}), static_cast<std::ptrdiff_t>(mib));
  pool.allocate(8192);
  CHECK_EQUAL(acquired_bytes, mib + 8192);
  pool.resize_tail(2 * mib);
  CHECK_EQUAL(acquired_bytes, 3 * mib + 8192);
  CHECK_FAULT(memory, "of its limit of 8388608 bytes are in use", pool.resize_tail(8 * mib));
  CHECK_EQUAL(acquired_bytes, 3 * mib + 8192);
}

TEST(if_a_whole_step_is_refused_the_pool_acquires_only_its_need) {
  std::uint64_t left_bytes = mib;
  HostPool pool(64 * mib, {[&](std::byte* address, std::size_t size_bytes) {
                  if (size_bytes > left_bytes) throw Fault(Fault::Kind::memory, "none left");
                  left_bytes -= size_bytes;
                  populate(address, size_bytes);
                }});
  pool.allocate(5000);
  CHECK_EQUAL(left_bytes, mib - 8192);
}

TEST(random_use_never_overlaps_and_ends_as_one_free_range) {
  constexpr std::uint64_t limit_bytes = 40 * mib + 64;
  HostPool pool(limit_bytes);
  std::minstd_rand random(11);
  std::map<std::byte*, std::uint64_t> live;
  std::uint64_t used_bytes = 0;
  for (int turn = 0; turn < 5000; ++turn) {
    if (random() % 5 < 3) {
      const std::uint64_t size_bytes = (random() % (random() % 8 == 0 ? 4 * mib : 100'000) / 64 + 1) * 64;
      std::byte* buffer = nullptr;
      try {
        buffer = pool.allocate(size_bytes);
      } catch (const Fault&) {
        continue;
      }
      const auto after = live.lower_bound(buffer);
      CHECK(after == live.end() || buffer + size_bytes <= after->first);
      CHECK(after == live.begin() || std::prev(after)->first + std::prev(after)->second <= buffer);
      live.emplace(buffer, size_bytes);
      used_bytes += size_bytes;
    } else if (!live.empty()) {
      const auto chosen = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      pool.free(chosen->first);
      used_bytes -= chosen->second;
      live.erase(chosen);
    }
    CHECK_EQUAL(pool.usage().used_bytes, used_bytes);
  }
  for (const auto& [buffer, size_bytes] : live) pool.free(buffer);
  CHECK_EQUAL(pool.usage().used_bytes, 0U);
  CHECK(pool.allocate(limit_bytes) != nullptr);
}

TEST(a_forked_child_has_no_copy_of_a_pool_and_leaves_what_it_maps_there) {
  HostPool pool(4 * mib);
  std::byte* const buffer = pool.allocate(mib);
  *buffer = std::byte{1};
  const pid_t child = ::fork();
  if (child == 0) {
    // A page of its own in the place of the buffer outlives the child's copy of the pool.
    const auto size_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const bool is_free = ::mmap(buffer, size_bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == buffer;
    pool.~HostPool();
    if (is_free) *buffer = std::byte{2};
    ::_exit(is_free ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_EQUAL(static_cast<int>(*buffer), 1);
}
