#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "check.hpp"
#include "emulated_device.hpp"

using namespace tensile;
using namespace std::chrono_literals;
using layout::RegionState;

namespace {

constexpr std::uint64_t region = 16'384;  // of pages of 4096

Ledger device_of(std::uint64_t regions) {
  return Ledger::create({regions * region, region, 1'000'000'000'000, 1'000'000'000'000, ""});
}

// A job that owns some regions of a device, with its arena.
struct Scene {
  explicit Scene(std::uint64_t granted, const ArenaShape& shape = {}, std::uint64_t regions = 8)
      : ledger(device_of(regions)), claim(ledger.claim_slot(1)) {
    ledger.grant(claim.slot, granted * region);
    arena = std::make_unique<Arena>(Ledger::attach(ledger.fd()), claim, shape);
  }

  std::uint64_t offset(const std::byte* address) const {
    return static_cast<std::uint64_t>(address - arena->begin());
  }
  RegionState state(std::uint64_t number) const { return ledger.regions().owner(number).state; }

  // Return the memory that the system has set aside for the device's file.
  std::uint64_t stored_bytes() const {
    struct stat status {};
    ::fstat(ledger.fd(), &status);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
  }

  Ledger ledger;
  Claim claim;
  std::unique_ptr<Arena> arena;
};

std::vector<std::uint64_t> regions_of(const Ledger& ledger, const Claim& claim) {
  std::vector<std::uint64_t> owned;
  for (std::uint64_t number = 0; number < ledger.regions().count(); ++number) {
    if (ledger.regions().is_of(claim, number)) owned.push_back(number);
  }
  return owned;
}

using Numbers = std::vector<std::uint64_t>;

// Return whether a child process that runs this ends normally, with status 0.
bool survives(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);  // suppress a sanitizer's report of the expected fault
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST(regions_are_granted_in_one_run_if_possible) {
  Ledger ledger = device_of(10);
  const Claim a = ledger.claim_slot(1);
  const Claim b = ledger.claim_slot(2);
  const Claim c = ledger.claim_slot(3);
  ledger.grant(a.slot, 3 * region);
  ledger.grant(b.slot, 2 * region);
  ledger.grant(c.slot, 1 * region);
  CHECK(regions_of(ledger, a) == (Numbers{0, 1, 2}));
  CHECK(regions_of(ledger, b) == (Numbers{3, 4}));
  CHECK(regions_of(ledger, c) == (Numbers{5}));
  ledger.release_slot(b.slot);
  ledger.grant(c.slot, 2 * region);  // next to its own region, in the shorter gap
  CHECK(regions_of(ledger, c) == (Numbers{4, 5}));
  const Claim d = ledger.claim_slot(4);
  ledger.grant(d.slot, 5 * region);  // the longest run, then the remaining regions
  CHECK(regions_of(ledger, d) == (Numbers{3, 6, 7, 8, 9}));
  ledger.grant(d.slot, 2 * region);  // the highest regions come back first
  CHECK(regions_of(ledger, d) == (Numbers{3, 6}));
}

TEST(equal_calls_give_equal_addresses_which_may_span_regions) {
  for (int turn = 0; turn < 2; ++turn) {
    Scene scene(4);
    const std::byte* small = scene.arena->allocate(100);
    const std::byte* large = scene.arena->allocate(2 * region);
    const std::byte* next = scene.arena->allocate(1);
    CHECK_EQUAL(scene.offset(small), 0U);
    CHECK_EQUAL(scene.offset(large), 128U);
    CHECK_EQUAL(scene.offset(next), 128U + 2 * region);
    scene.arena->free(large);
    CHECK_EQUAL(scene.offset(scene.arena->allocate(2 * region)), 128U);
    CHECK(scene.arena->around(large + 2 * region - 1) == (Range{128, 2 * region}));
    CHECK(!scene.arena->around(small + 128 + 2 * region + 64));
    const ArenaUsage usage = scene.arena->usage();
    CHECK_EQUAL(usage.owned_bytes, 4 * region);
    CHECK_EQUAL(usage.reserved_bytes, 3 * region);
    CHECK_EQUAL(usage.allocated_bytes, 128 + 2 * region + 64);
    CHECK_EQUAL(usage.requested_bytes, 100 + 2 * region + 1);
    CHECK_EQUAL(usage.high_water_bytes, usage.allocated_bytes);
    CHECK_EQUAL(usage.largest_free_bytes, 4 * region - usage.allocated_bytes);
  }
}

TEST(alignment_is_as_configured) {
  Scene scene(2, {.alignment_bytes = 512});
  CHECK_EQUAL(scene.offset(scene.arena->allocate(1)), 0U);
  CHECK_EQUAL(scene.offset(scene.arena->allocate(513)), 512U);
  CHECK_EQUAL(scene.offset(scene.arena->allocate(1)), 1536U);
  const auto of_alignment = [&](std::uint64_t bytes) {
    Arena(Ledger::attach(scene.ledger.fd()), scene.claim, {.alignment_bytes = bytes});
  };
  CHECK_FAULT(invariant, "an alignment of 48 bytes is no power of two", of_alignment(48));
  CHECK_FAULT(invariant, "an alignment of 8192 bytes", of_alignment(8192));
}

TEST(a_planned_offset_is_allocated_if_it_is_free) {
  Scene scene(3);
  const std::byte* planned = scene.arena->allocate_at(region - 64, 128);
  CHECK_EQUAL(scene.offset(planned), region - 64);
  CHECK_EQUAL(scene.offset(scene.arena->allocate(region)), region + 64);
  CHECK_FAULT(invariant, "are not free in the regions of this job", scene.arena->allocate_at(region, 64));
  CHECK_FAULT(invariant, "are not free in the regions of this job", scene.arena->allocate_at(3 * region - 64, 128));
  CHECK_FAULT(invariant, "64 bytes at offset 32: the device has", scene.arena->allocate_at(32, 64));
  CHECK_FAULT(invariant, "0 bytes at offset 0", scene.arena->allocate_at(0, 0));
  CHECK_FAULT(invariant, "the device has 131072 bytes", scene.arena->allocate_at(0, UINT64_MAX));
  scene.arena->free(planned);
  CHECK_FAULT(invariant, "is no allocation of the arena, or no longer", scene.arena->free(planned));
  CHECK_FAULT(invariant, "is no allocation of the arena", scene.arena->free(nullptr));
  CHECK_EQUAL(scene.offset(scene.arena->allocate_at(0, region)), 0U);
}

TEST(an_arena_without_room_reports_its_usage) {
  Scene scene(2);
  scene.arena->allocate(region);
  CHECK_FAULT(
      memory,
      "slot 0: the arena has no 16448 bytes in one piece: 16384 of 32768 bytes in its regions are in use, and "
      "16384 are free in one piece",
      scene.arena->allocate(region + 64));
  CHECK_FAULT(memory, "in one piece", scene.arena->allocate(UINT64_MAX));
  CHECK_FAULT(invariant, "an allocation of 0 bytes", scene.arena->allocate(0));
}

TEST(the_arena_loses_empty_regions_when_its_grant_is_lowered) {
  Scene scene(4);
  std::byte* remaining = scene.arena->allocate_at(region, 64);
  std::byte* last = scene.arena->allocate_at(3 * region, 64);
  CHECK(scene.state(1) == RegionState::used && scene.state(2) == RegionState::empty);
  CHECK_EQUAL(scene.ledger.grant(scene.claim.slot, region), region);
  CHECK(regions_of(scene.ledger, scene.claim) == (Numbers{1, 3}));
  CHECK_EQUAL(scene.ledger.usage(scene.claim.slot).granted_bytes, region);
  CHECK_EQUAL(scene.ledger.usage(scene.claim.slot).held_bytes, 2 * region);
  CHECK_EQUAL(scene.ledger.usage().granted_bytes, 2 * region);
  CHECK_FAULT(memory, "no 16384 bytes in one piece", scene.arena->allocate(region));
  scene.arena->free(last);
  scene.ledger.grant(scene.claim.slot, region);
  CHECK(regions_of(scene.ledger, scene.claim) == (Numbers{1}));
  CHECK_EQUAL(scene.offset(scene.arena->allocate(region - 64)), region + 64);
  scene.arena->free(remaining);
  scene.ledger.grant(scene.claim.slot, 3 * region);
  CHECK_EQUAL(scene.offset(scene.arena->allocate(2 * region)), 2 * region);
}

TEST(a_region_with_an_allocation_is_not_taken) {
  Scene scene(2);
  std::byte* first = scene.arena->allocate(64);
  std::byte* second = scene.arena->allocate(region);
  scene.arena->free(first);
  scene.ledger.grant(scene.claim.slot, 0);
  CHECK(regions_of(scene.ledger, scene.claim) == (Numbers{0, 1}));
  scene.arena->free(second);
  scene.ledger.grant(scene.claim.slot, 0);
  CHECK(regions_of(scene.ledger, scene.claim).empty());
}

TEST(memory_is_reserved_at_first_use_and_returned_cleared) {
  Scene scene(4);
  const std::uint64_t before_bytes = scene.stored_bytes();
  std::byte* tensor = scene.arena->allocate(2 * region);
  CHECK_EQUAL(scene.stored_bytes(), before_bytes + 2 * region);
  std::memset(tensor, 7, 2 * region);
  scene.arena->free(tensor);
  CHECK_EQUAL(scene.arena->usage().reserved_bytes, 2 * region);
  CHECK_EQUAL(scene.stored_bytes(), before_bytes + 2 * region);
  scene.ledger.grant(scene.claim.slot, 0);
  CHECK_EQUAL(scene.stored_bytes(), before_bytes);
  CHECK_EQUAL(scene.arena->usage().reserved_bytes, 0U);
  CHECK_EQUAL(scene.arena->usage().reserved_high_water_bytes, 2 * region);
  const Claim next = scene.ledger.claim_slot(2);
  scene.ledger.grant(next.slot, 2 * region);
  Arena other(Ledger::attach(scene.ledger.fd()), next, {});
  const std::byte* fresh = other.allocate(2 * region);
  CHECK(std::all_of(fresh, fresh + 2 * region, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(an_offset_means_the_same_byte_in_every_process) {
  Scene scene(2);
  std::byte* own = scene.arena->allocate(100);
  const pid_t child = ::fork();
  if (child == 0) {
    Arena other(Ledger::attach(scene.ledger.fd()), scene.claim, {});
    other.begin()[scene.offset(own) + 99] = std::byte{42};
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  CHECK(own[99] == std::byte{42});
}

TEST(a_dead_jobs_regions_are_quarantined_until_it_is_released) {
  Scene scene(3);
  scene.arena->allocate(region);
  scene.ledger.revoke_slot(scene.claim.slot);
  CHECK(scene.state(0) == RegionState::used);
  CHECK_EQUAL(scene.ledger.usage().granted_bytes, 3 * region);
  CHECK_FAULT(device, "epoch 1 is over", scene.ledger.move(scene.claim, 0, 1));
  CHECK_FAULT(invariant, "nobody has claimed it", scene.ledger.usage(scene.claim.slot));
  const Claim next = scene.ledger.claim_slot(2);
  CHECK_EQUAL(next.slot, 1U);
  CHECK_FAULT(memory, "does not fit beside 49152 bytes granted to others", scene.ledger.grant(next.slot, 6 * region));
  scene.ledger.release_slot(scene.claim.slot);
  CHECK_EQUAL(scene.ledger.usage().granted_bytes, 0U);
  CHECK_EQUAL(scene.ledger.grant(next.slot, 8 * region), 8 * region);
  CHECK_FAULT(invariant, "nobody has claimed it", scene.ledger.release_slot(scene.claim.slot));
}

TEST(a_hook_allocates_until_the_arena_is_full_and_then_counts_refusals) {
  Scene scene(2);
  const tensile_arena_hook hook = scene.arena->hook();
  CHECK_EQUAL(hook.end - hook.begin, 8 * region);
  void* first = hook.allocate(hook.context, 2 * region);
  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(first), hook.begin);
  CHECK(hook.allocate(hook.context, 1) == nullptr);
  CHECK(hook.allocate(hook.context, 0) == nullptr);
  CHECK(hook.allocate(hook.context, SIZE_MAX) == nullptr);
  CHECK_EQUAL(scene.arena->usage().fallback_count, 2U);
  int elsewhere = 0;
  CHECK(hook.release(hook.context, &elsewhere) != 0);
  CHECK_EQUAL(hook.release(hook.context, first), 0);
  CHECK(hook.release(hook.context, first) != 0);
  CHECK(hook.allocate(hook.context, 1) == first);
}

TEST(a_hook_serves_many_threads_at_once) {
  Scene scene(8);
  const tensile_arena_hook hook = scene.arena->hook();
  std::atomic<bool> failed{false};
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::minstd_rand random(number);
      std::vector<std::pair<unsigned char*, std::size_t>> live;
      for (int turn = 0; turn < 5000; ++turn) {
        if (live.size() < 4) {
          const std::size_t size = 1 + random() % 5000;
          if (void* address = hook.allocate(hook.context, size)) {
            std::memset(address, static_cast<int>(number), size);
            live.emplace_back(static_cast<unsigned char*>(address), size);
          }
          continue;
        }
        const auto [address, size] = live[random() % live.size()];
        if (std::any_of(address, address + size, [&](unsigned char byte) { return byte != number; })) failed = true;
        if (hook.release(hook.context, address) != 0) failed = true;
        std::erase_if(live, [&, gone = address](const auto& entry) { return entry.first == gone; });
      }
      for (const auto& entry : live) hook.release(hook.context, entry.first);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!failed);
  CHECK_EQUAL(scene.arena->usage().allocated_bytes, 0U);
  CHECK_EQUAL(scene.arena->usage().requested_bytes, 0U);
}

TEST(a_forked_child_can_use_neither_the_memory_nor_the_allocator) {
  Scene scene(2);
  const tensile_arena_hook& hook = scene.arena->hook();
  void* own = hook.allocate(hook.context, 100);
  CHECK(survives([&] {
    if (hook.allocate(hook.context, 1) != nullptr || hook.release(hook.context, own) != 0) ::_exit(1);
  }));
  CHECK(!survives([&] { static_cast<volatile std::byte*>(own)[0] = std::byte{1}; }));
  CHECK_EQUAL(hook.release(hook.context, own), 0);
}

TEST(a_strict_arena_makes_unallocated_memory_inaccessible) {
  // The child creates an arena of its own, because it does not inherit the parent's mapping.
  const auto touches = [](std::uint64_t freed_from, std::uint64_t touched) {
    return survives([&] {
      Scene scene(4, {.strict = true});
      scene.arena->allocate_at(0, freed_from);
      std::byte* gone = scene.arena->allocate_at(freed_from, 3 * region - freed_from);
      scene.arena->free(gone);
      static_cast<volatile std::byte*>(scene.arena->begin())[touched] = std::byte{1};
    });
  };
  CHECK(touches(4096, 0));
  CHECK(!touches(4096, 4096));
  CHECK(!touches(4096, 3 * region - 1));
  CHECK(!touches(4096, 3 * region));     // never allocated
  CHECK(!touches(4096, 5 * region));     // a region of another job
  CHECK(touches(4096 + 64, 4096 + 64));  // shares a page with a live allocation
  CHECK(!touches(4096 + 64, 2 * 4096));
}

TEST(a_strict_arena_poisons_freed_and_new_memory) {
  Scene scene(2, {.strict = true});
  std::byte* remaining = scene.arena->allocate(64);
  std::byte* gone = scene.arena->allocate(64);
  CHECK(gone[0] == Arena::poison && gone[63] == Arena::poison);
  std::memset(remaining, 1, 64);
  std::memset(gone, 2, 64);
  scene.arena->free(gone);
  CHECK(gone[0] == Arena::poison && gone[63] == Arena::poison);
  CHECK(remaining[63] == std::byte{1});
  std::byte* large = scene.arena->allocate(region);
  std::memset(large, 3, region);
  scene.arena->free(large);
  scene.arena->free(remaining);
  CHECK(scene.arena->allocate(2 * region)[region] == Arena::poison);
}

TEST(a_device_frees_no_memory_of_a_pending_copy) {
  Ledger ledger = Ledger::create({4 * region, region, 1'000'000, 1'000'000, ""});
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 2 * region);
  EmulatedDevice device(Ledger::attach(ledger.fd()), claim, 1 << 20, 1000);
  const DeviceAddress tensor = device.allocate(10'000);
  const DeviceAddress other = device.allocate_at(region, 100);
  std::byte* host = device.host_allocate(10'000);
  ledger.words().out.free_ns = now_ns() + 500'000'000;  // the link is busy until then
  const Ticket ticket = device.copy_out(host, tensor + 100, 5000);
  device.free(other);
  CHECK_FAULT(invariant, "is freed while a copy still uses it", device.free(tensor));
  CHECK(device.wait_for(ticket, 60s));
  device.free(tensor);
  CHECK_EQUAL(device.arena().usage().allocated_bytes, 0U);
}

TEST(the_memory_file_can_be_in_a_given_directory) {
  Ledger ledger = Ledger::create({4 * region, region, 1, 1, "/dev/shm"});
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, region);
  Arena arena(Ledger::attach(ledger.fd()), claim, {});
  std::memset(arena.allocate(region), 1, region);
  CHECK_FAULT(device, "the device's memory cannot be made in memory_directory '/nowhere': No such file",
              Ledger::create({4 * region, region, 1, 1, "/nowhere"}));
}

TEST(bad_sizes_of_a_device_are_refused) {
  CHECK_FAULT(device, "a region of 1000 bytes is not a multiple of the 4096 bytes of a page",
              Ledger::create({10'000, 1000, 1, 1, ""}));
  CHECK_FAULT(device, "has 2097152 regions, and at most 1048576 are possible",
              Ledger::create({std::uint64_t{1} << 33, 4096, 1, 1, ""}));
  Ledger counting = Ledger::create({10'000, 1000, 1, 1});
  const Claim claim = counting.claim_slot(1);
  CHECK_FAULT(device, "the device has no memory of its own", Arena(Ledger::attach(counting.fd()), claim, {}));
  EmulatedDevice device(Ledger::attach(counting.fd()), claim, 0);
  CHECK_FAULT(device, "the device has no memory of its own", device.allocate(1));
}

TEST(too_little_machine_memory_is_an_error_and_not_a_signal) {
  // The machine cannot give one region all of its memory.
  const std::uint64_t huge = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes();
  Ledger ledger = Ledger::create({2 * huge, huge, 1, 1, ""});
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, huge);
  Arena arena(Ledger::attach(ledger.fd()), claim, {});
  CHECK_FAULT(lost, text("the system has no memory for ", huge, " more bytes of the device: "), arena.allocate(100));
  CHECK(ledger.regions().owner(0).state == RegionState::empty);
  CHECK(arena.hook().allocate(arena.hook().context, 100) == nullptr);
  CHECK_EQUAL(arena.usage().fallback_count, 1U);
}

TEST(a_full_file_system_is_an_error_and_not_a_signal) {
  // Runs in a child with a mount namespace of its own, which only root can create.
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0) ::_exit(77);
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(77);
    if (::mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=96k") != 0) ::_exit(77);
    Ledger ledger = Ledger::create({8 * region, region, 1, 1, "/dev/shm"});
    const Claim claim = ledger.claim_slot(1);
    ledger.grant(claim.slot, 8 * region);
    Arena arena(Ledger::attach(ledger.fd()), claim, {});
    std::uint64_t placed = 0;
    std::string message;
    try {
      for (;; ++placed) std::memset(arena.allocate(region), 1, region);
    } catch (const Fault& fault) {
      message = fault.what();
    }
    CHECK_EQUAL(placed, 5U);  // 24 pages, of which the ledger uses two
    CHECK(message.find("No space left on device") != std::string::npos);
    const std::byte* spanning = nullptr;
    CHECK_FAULT(lost, "No space left", spanning = arena.allocate_at(5 * region, 2 * region));
    CHECK(ledger.regions().owner(5).state == RegionState::empty);
    CHECK_EQUAL(arena.usage().reserved_bytes, 5 * region);
    ::_exit(placed == 5 && !message.empty() && spanning == nullptr ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) std::printf("     not tried: no file system of our own\n");
}
