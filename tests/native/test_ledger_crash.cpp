// A process may end between any two instructions; the ledger must recover all of its bytes exactly.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <thread>

#include "check.hpp"
#include "churn.hpp"
#include "lane_clock.hpp"
#include "ledger.hpp"

using namespace tensile;
using layout::Intent;
using layout::Tally;

namespace {

constexpr std::uint64_t region = 1000;

// A job with 100 bytes that is about to take 40 more, and another job with 7 bytes.
struct Scene {
  Ledger ledger = Ledger::create({20 * region, region, 1'000'000, 1'000'000});
  Claim dying = ledger.claim_slot(1);
  Claim other = ledger.claim_slot(2);
  std::uint64_t sequence = 0;

  Scene() {
    ledger.grant(dying.slot, region);
    ledger.grant(other.slot, region);
    ledger.move(other, 0, 7);
    ledger.move(dying, 0, 100);
    sequence = layout::next(Tally::unpacked(slot().tally.load()).sequence);
  }

  layout::Slot& slot() { return ledger.words().slots[dying.slot]; }
  void state_intent() { slot().intent = Intent{sequence, 40}.packed(); }
  void post() {
    const std::uint64_t used_bytes = Tally::unpacked(ledger.words().pool.tally.load()).used_bytes + 40;
    ledger.words().pool.tally = Tally{sequence, dying.slot, used_bytes}.packed();
  }

  // Release the slot and check the bytes; then check that the slot's next claim can use everything again.
  void check_exact(std::uint64_t others_bytes) {
    ledger.release_slot(dying.slot);
    CHECK_EQUAL(ledger.usage().used_bytes, others_bytes);
    CHECK_EQUAL(ledger.usage().granted_bytes, region);
    const Claim next = ledger.claim_slot(3);
    CHECK_EQUAL(next.slot, dying.slot);
    ledger.grant(next.slot, region);
    ledger.move(next, 0, 500);
    CHECK_EQUAL(ledger.usage().used_bytes, others_bytes + 500);
    ledger.move(next, 500, 0);
    ledger.release_slot(next.slot);
    ledger.release_slot(other.slot);
    CHECK_EQUAL(ledger.usage().used_bytes, 0U);
    CHECK_EQUAL(ledger.usage().granted_bytes, 0U);
  }
};

// Move random numbers of bytes until the process is killed, as a trainer does.
[[noreturn]] void move_for_ever(int fd, const Claim& claim) {
  Ledger ledger = Ledger::attach(fd);
  std::minstd_rand random(claim.slot + static_cast<unsigned>(claim.epoch));
  std::uint64_t held_bytes = 0;
  for (;;) {
    const std::uint64_t freed_bytes = random() % (held_bytes + 1);
    const std::uint64_t taken_bytes = random() % (region - (held_bytes - freed_bytes));
    ledger.move(claim, freed_bytes, taken_bytes);
    held_bytes += taken_bytes - freed_bytes;
  }
}

pid_t start_mover(Ledger& ledger, const Claim& claim) {
  ledger.grant(claim.slot, region);
  const pid_t child = ::fork();
  if (child == 0) move_for_ever(ledger.fd(), claim);
  check::wait_until([&] { return ledger.words().slots[claim.slot].high_water_bytes.load() != 0; });
  return child;
}

void end_mover(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t arena_region = 2 * page;

pid_t start_churner(Ledger& ledger, const Claim& claim, std::uint64_t regions) {
  ledger.grant(claim.slot, regions * arena_region);
  const pid_t child = ::fork();
  if (child == 0) {
    churn(Ledger::attach(ledger.fd()), claim, claim.epoch);
    ::_exit(3);
  }
  check::wait_until([&] {
    for (std::uint64_t number = 0; number < ledger.regions().count(); ++number) {
      if (ledger.regions().is_of(claim, number) && ledger.regions().owner(number).backed) return true;
    }
    return false;
  });
  return child;
}

// Change a grant; a grant that would fall below the bytes in use stays as it is.
void regrant(Ledger& ledger, const Claim& claim, std::uint64_t size_bytes) {
  try {
    ledger.grant(claim.slot, size_bytes);
  } catch (const Fault& fault) {
    CHECK(fault.kind() == Fault::Kind::memory);
  }
}

}  // namespace

TEST(a_process_killed_before_a_move_leaves_exact_counts) {
  Scene scene;
  scene.check_exact(7);
}

TEST(a_process_killed_after_its_intent_leaves_exact_counts) {
  Scene scene;
  scene.state_intent();
  scene.check_exact(7);
}

TEST(a_process_killed_after_its_intent_during_anothers_move_leaves_exact_counts) {
  Scene scene;
  scene.state_intent();
  scene.ledger.move(scene.other, 0, 3);
  scene.check_exact(10);
}

TEST(a_process_killed_after_posting_leaves_exact_counts) {
  Scene scene;
  scene.state_intent();
  scene.post();
  scene.check_exact(7);
}

TEST(a_process_killed_after_posting_during_anothers_move_leaves_exact_counts) {
  Scene scene;
  scene.state_intent();
  scene.post();
  scene.ledger.move(scene.other, 0, 3);
  scene.ledger.move(scene.other, 1, 0);
  scene.check_exact(9);
}

TEST(a_peak_posted_by_a_killed_process_is_kept) {
  Scene scene;
  scene.state_intent();
  scene.post();
  CHECK_EQUAL(scene.ledger.usage().high_water_bytes, 147U);
  scene.ledger.release_slot(scene.dying.slot);
  CHECK_EQUAL(scene.ledger.usage().high_water_bytes, 147U);
}

TEST(a_process_killed_at_any_time_leaves_the_counts_of_a_running_job_exact) {
  Ledger ledger = Ledger::create({20 * region, region, 1'000'000, 1'000'000});
  const Claim neighbour = ledger.claim_slot(1);
  const pid_t neighbour_pid = start_mover(ledger, neighbour);
  std::minstd_rand random(5);
  for (int round = 0; round < 200; ++round) {
    const Claim claim = ledger.claim_slot(2);
    const pid_t child = start_mover(ledger, claim);
    LaneClock::sleep_until(now_ns() + random() % 200'000);
    end_mover(child);
    ledger.release_slot(claim.slot);
    CHECK(ledger.usage().used_bytes <= region);
  }
  end_mover(neighbour_pid);
  ledger.release_slot(neighbour.slot);
  CHECK_EQUAL(ledger.usage().used_bytes, 0U);
  CHECK_EQUAL(ledger.usage().granted_bytes, 0U);
  CHECK(ledger.usage().high_water_bytes <= 2 * region);
}

TEST(a_process_killed_while_allocating_leaves_the_arenas_of_running_jobs_intact) {
  constexpr std::uint64_t count = 40;
  Ledger ledger = Ledger::create({count * arena_region, arena_region, 1'000'000, 1'000'000, ""});
  const Claim steady = ledger.claim_slot(1);
  const Claim resized = ledger.claim_slot(2);
  const pid_t steady_pid = start_churner(ledger, steady, 8);
  const pid_t resized_pid = start_churner(ledger, resized, 8);
  std::minstd_rand random(11);
  for (int round = 0; round < 100; ++round) {
    const Claim claim = ledger.claim_slot(3);
    const pid_t child = start_churner(ledger, claim, 1 + random() % 12);
    regrant(ledger, resized, (1 + random() % 8) * arena_region);
    LaneClock::sleep_until(now_ns() + random() % 2'000'000);
    regrant(ledger, resized, (1 + random() % 8) * arena_region);
    end_mover(child);
    ledger.revoke_slot(claim.slot);
    ledger.release_slot(claim.slot);
    CHECK_EQUAL(ledger.regions().held_count(steady), 8U);
    CHECK_EQUAL(ledger.regions().free_count(), count - 8 - ledger.regions().held_count(resized));
  }
  CHECK_EQUAL(::waitpid(steady_pid, nullptr, WNOHANG), 0);
  CHECK_EQUAL(::waitpid(resized_pid, nullptr, WNOHANG), 0);
  end_mover(steady_pid);
  end_mover(resized_pid);
  ledger.release_slot(steady.slot);
  ledger.release_slot(resized.slot);
  CHECK_EQUAL(ledger.regions().free_count(), count);
  CHECK_EQUAL(ledger.usage().used_bytes, 0U);
  struct stat status {};
  ::fstat(ledger.fd(), &status);
  CHECK_EQUAL(static_cast<std::uint64_t>(status.st_blocks) * 512, 3 * page);  // the pages of the ledger itself
}

TEST(a_job_whose_slot_is_released_is_stopped_and_leaves_no_bytes) {
  Ledger ledger = Ledger::create({20 * region, region, 1'000'000, 1'000'000});
  for (int round = 0; round < 1000; ++round) {
    const Claim claim = ledger.claim_slot(1);
    ledger.grant(claim.slot, region);
    std::atomic<bool> moving{false};
    bool refused = false;
    std::thread zombie([&] {
      try {
        for (;;) {
          ledger.move(claim, 0, 13);
          moving = true;
          ledger.move(claim, 13, 0);
        }
      } catch (const Fault& fault) {
        refused = fault.kind() == Fault::Kind::device;
        moving = true;
      }
    });
    check::wait_until([&] { return moving.load(); });
    ledger.release_slot(claim.slot);
    zombie.join();
    CHECK(refused);
    CHECK_EQUAL(ledger.usage().used_bytes, 0U);
  }
}
