#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "account.hpp"
#include "check.hpp"
#include "ledger.hpp"

using namespace tensile;

namespace {

constexpr std::uint64_t region = 1000;

Ledger device_of(std::uint64_t regions) { return Ledger::create({regions * region, region, 1'000'000, 1'000'000}); }

}  // namespace

TEST(grants_are_whole_regions_and_never_exceed_the_capacity) {
  Ledger ledger = device_of(10);
  const Claim a = ledger.claim_slot(1);
  const Claim b = ledger.claim_slot(2);
  CHECK_EQUAL(ledger.grant(a.slot, 5001), 6000U);
  CHECK_FAULT(memory, "slot 1: a grant of 5000 bytes does not fit beside 6000 bytes granted to others",
              ledger.grant(b.slot, 4001));
  CHECK_EQUAL(ledger.grant(b.slot, 4000), 4000U);
  CHECK_EQUAL(ledger.usage().granted_bytes, 10000U);
  CHECK_EQUAL(ledger.grant(a.slot, 0), 0U);
  CHECK_EQUAL(ledger.grant(b.slot, 10000), 10000U);
  CHECK_FAULT(memory, "does not fit", ledger.grant(b.slot, UINT64_MAX));
  CHECK_EQUAL(ledger.usage(b.slot).granted_bytes, 10000U);
}

TEST(a_move_frees_before_it_takes_and_updates_the_high_water_mark) {
  Ledger ledger = device_of(10);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 3000);
  ledger.move(claim, 0, 2500);
  ledger.move(claim, 2000, 1000);
  CHECK_EQUAL(ledger.usage(claim.slot).used_bytes, 1500U);
  CHECK_EQUAL(ledger.usage(claim.slot).high_water_bytes, 2500U);
  CHECK_EQUAL(ledger.usage().high_water_bytes, 2500U);
  ledger.reset_high_water(claim);
  CHECK_EQUAL(ledger.usage(claim.slot).high_water_bytes, 1500U);
  ledger.move(claim, 1500, 3000);  // fits as one change, while taking alone would not
  CHECK_EQUAL(ledger.usage(claim.slot).used_bytes, 3000U);
}

TEST(a_move_beyond_the_grant_changes_nothing) {
  Ledger ledger = device_of(10);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 1000);
  ledger.move(claim, 0, 900);
  CHECK_FAULT(memory,
              "taking 200 bytes after giving back 50 of 900 bytes in use exceeds the grant of 1000 bytes by 50",
              ledger.move(claim, 50, 200));
  CHECK_FAULT(memory, "exceeds the grant", ledger.move(claim, 0, UINT64_MAX / 2));
  CHECK_FAULT(invariant, "giving back 901 bytes of which only 900 are in use", ledger.move(claim, 901, 0));
  CHECK_EQUAL(ledger.usage(claim.slot).used_bytes, 900U);
  CHECK_EQUAL(ledger.usage().used_bytes, 900U);
  CHECK_EQUAL(ledger.usage().high_water_bytes, 900U);
  ledger.move(claim, 900, 1000);
  CHECK_EQUAL(ledger.usage().used_bytes, 1000U);
}

TEST(a_grant_is_not_lowered_below_the_bytes_in_use) {
  Ledger ledger = device_of(10);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 3000);
  ledger.move(claim, 0, 1001);
  CHECK_FAULT(memory, "cannot be lowered to 1000 bytes while 1001 bytes are in use", ledger.grant(claim.slot, 1000));
  CHECK_EQUAL(ledger.usage(claim.slot).granted_bytes, 3000U);
  CHECK_EQUAL(ledger.usage().granted_bytes, 3000U);
  CHECK_EQUAL(ledger.grant(claim.slot, 1001), 2000U);
  CHECK_EQUAL(ledger.usage().granted_bytes, 2000U);
}

TEST(a_released_slot_returns_all_bytes_and_refuses_its_old_epoch) {
  Ledger ledger = device_of(10);
  const Claim before = ledger.claim_slot(77);
  ledger.grant(before.slot, 3000);
  ledger.move(before, 0, 1234);
  ledger.release_slot(before.slot);
  CHECK_EQUAL(ledger.usage().used_bytes, 0U);
  CHECK_EQUAL(ledger.usage().granted_bytes, 0U);
  CHECK_EQUAL(ledger.usage().high_water_bytes, 1234U);
  CHECK_FAULT(device, "slot 0: epoch 1 is over, the device's ledger is at epoch 2", ledger.move(before, 1, 0));
  CHECK_FAULT(invariant, "nobody has claimed it", ledger.release_slot(before.slot));
  CHECK_FAULT(invariant, "nobody has claimed it", ledger.grant(before.slot, 1));
  const Claim after = ledger.claim_slot(78);
  CHECK_EQUAL(after.slot, before.slot);
  CHECK_EQUAL(after.epoch, 2U);
  CHECK_FAULT(device, "epoch 1 is over", ledger.check(before));
  CHECK_EQUAL(ledger.usage(after.slot).used_bytes, 0U);
  CHECK_EQUAL(ledger.usage(after.slot).pid, 78U);
}

TEST(each_slot_is_claimed_once_until_none_is_free) {
  Ledger ledger = device_of(1);
  for (std::uint32_t slot = 0; slot < layout::slot_count; ++slot) CHECK_EQUAL(ledger.claim_slot(9).slot, slot);
  CHECK_FAULT(device, "all 64 slots of the device are taken", ledger.claim_slot(9));
  CHECK_FAULT(invariant, "slot 64: the device has slots 0 to 63", ledger.usage(64));
  CHECK_FAULT(invariant, "slot 99", ledger.move({99, 1}, 0, 0));
  ledger.release_slot(17);
  CHECK_EQUAL(ledger.claimed_slots().size(), 63U);
  CHECK_EQUAL(ledger.claim_slot(9).slot, 17U);
}

TEST(an_attached_ledger_shares_its_contents) {
  Ledger ledger = device_of(10);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 1000);
  Ledger other = Ledger::attach(ledger.fd());
  CHECK(other.fd() != ledger.fd());
  other.move(claim, 0, 600);
  CHECK_EQUAL(ledger.usage(claim.slot).used_bytes, 600U);
}

TEST(a_file_that_is_no_ledger_is_refused) {
  const SharedMemory small = SharedMemory::create("small", "", 100, 100);
  CHECK_FAULT(device, "holds 100 bytes, a device ledger", Ledger::attach(small.fd()));
  const SharedMemory empty = SharedMemory::create("empty", "", sizeof(layout::Ledger), sizeof(layout::Ledger));
  CHECK_FAULT(device, "is no device ledger", Ledger::attach(empty.fd()));
  CHECK_FAULT(device, "Bad file descriptor", Ledger::attach(-1));
  Ledger newer = device_of(1);
  newer.words().header.version = layout::version + 1;
  CHECK_FAULT(device, "layout 6, this process knows 5", Ledger::attach(newer.fd()));
  CHECK_FAULT(invariant, "must hold a region", Ledger::create({999, 1000, 1, 1}));
  CHECK_FAULT(invariant, "must be above 0", Ledger::create({1000, 1000, 0, 1}));
}

TEST(concurrent_moves_of_many_jobs_add_up_exactly) {
  constexpr std::uint64_t jobs = 4;
  Ledger ledger = device_of(jobs * 3);
  std::array<Claim, jobs> claims{};
  for (Claim& claim : claims) {
    claim = ledger.claim_slot(1);
    ledger.grant(claim.slot, 3 * region);
  }
  std::barrier all_hold(jobs);
  std::vector<std::thread> threads;
  for (const Claim& claim : claims) {
    threads.emplace_back([&, claim] {
      Account account(Ledger::attach(ledger.fd()), claim);
      for (int turn = 0; turn < 20000; ++turn) {
        account.move(0, 17);
        account.move(17, 0);
      }
      all_hold.arrive_and_wait();
      account.move(0, 2000 + claim.slot);
      all_hold.arrive_and_wait();
      account.move(1000, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(ledger.usage().used_bytes, 4U * 1000 + 0 + 1 + 2 + 3);
  CHECK_EQUAL(ledger.usage().high_water_bytes, 4U * 2000 + 0 + 1 + 2 + 3);
  for (const Claim& claim : claims) CHECK_EQUAL(ledger.usage(claim.slot).high_water_bytes, 2000 + claim.slot);
}

TEST(threads_of_one_process_share_a_slots_count) {
  Ledger ledger = device_of(10);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 10 * region);
  Account account(Ledger::attach(ledger.fd()), claim);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 5000; ++turn) {
        account.move(0, 30);
        account.move(29, 0);
        account.move(1, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(account.usage().used_bytes, 0U);
  CHECK(account.usage().high_water_bytes >= 30 && account.usage().high_water_bytes <= 90);
}

TEST(a_lowered_grant_limits_a_concurrent_move) {
  Ledger ledger = device_of(2);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 2 * region);
  std::atomic<bool> over{false};
  std::atomic<int> moved{0};
  std::thread mover([&] {
    Account account(Ledger::attach(ledger.fd()), claim);
    while (!over) {
      try {
        account.move(0, 2 * region);
      } catch (const Fault&) {
        continue;
      }
      ++moved;
      account.move(2 * region, 0);
    }
  });
  // The mover moves between any two lowered grants, so each of them meets a mover at work, on a single core too.
  for (int lowered = 0; lowered < 1000; ++lowered) {
    const int moved_before = moved;
    check::wait_until([&] { return moved > moved_before; });
    check::wait_until([&] {
      try {
        ledger.grant(claim.slot, region);
        return true;
      } catch (const Fault&) {
        return false;
      }
    });
    const layout::Word& tally = ledger.words().slots[claim.slot].tally;
    for (int look = 0; look < 20; ++look) CHECK(layout::Tally::unpacked(tally.load()).used_bytes <= region);
    ledger.grant(claim.slot, 2 * region);
  }
  over = true;
  mover.join();
  CHECK_EQUAL(ledger.usage().granted_bytes, ledger.usage(claim.slot).granted_bytes);
}

TEST(concurrent_grants_never_exceed_the_capacity) {
  Ledger ledger = device_of(3);
  std::vector<std::thread> threads;
  std::atomic<bool> passed{false};
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&] {
      const Claim claim = ledger.claim_slot(1);
      for (std::uint64_t turn = 0; turn < 5000; ++turn) {
        try {
          ledger.grant(claim.slot, turn % 3 * region);
        } catch (const Fault&) {
        }
        if (ledger.usage().granted_bytes > 3 * region) passed = true;
      }
      ledger.grant(claim.slot, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(!passed);
  CHECK_EQUAL(ledger.usage().granted_bytes, 0U);
}

TEST(an_absent_region_is_granted_to_nobody_until_it_is_restored) {
  Ledger ledger = device_of(10);
  const Claim a = ledger.claim_slot(1);
  const Claim b = ledger.claim_slot(2);
  ledger.grant(a.slot, 4000);
  CHECK(ledger.regions().withdraw(3) == (std::vector<std::uint64_t>{9, 8, 7}));
  CHECK_EQUAL(ledger.usage().granted_bytes, 4000U);
  CHECK_EQUAL(ledger.usage().absent_bytes, 3000U);
  CHECK_FAULT(memory,
              "a grant of 4000 bytes does not fit beside 4000 bytes granted to others on a device of 10000 bytes, of "
              "which other programs have 3000",
              ledger.grant(b.slot, 4000));
  CHECK_EQUAL(ledger.grant(b.slot, 3000), 3000U);
  CHECK(ledger.regions().withdraw(1).empty());  // every other region has an owner
  ledger.regions().restore({8});
  CHECK_EQUAL(ledger.grant(b.slot, 4000), 4000U);
  CHECK_FAULT(invariant, "region 8 gets memory again and was not absent", ledger.regions().restore({8}));
  CHECK_FAULT(invariant, "region 10 gets memory again", ledger.regions().restore({10}));
}

TEST(absent_regions_belong_to_no_slot_and_no_release_frees_them) {
  Ledger ledger = device_of(4);
  const Claim first = ledger.claim_slot(1);
  CHECK_EQUAL(first.slot, 0U);
  ledger.grant(first.slot, 1000);
  CHECK_EQUAL(ledger.regions().withdraw(2).size(), 2U);
  ledger.release_slot(first.slot);
  CHECK_EQUAL(ledger.usage().absent_bytes, 2000U);
  CHECK_EQUAL(ledger.usage().granted_bytes, 0U);
}

TEST(a_region_in_use_is_withdrawn_only_after_its_owner_has_given_it_back) {
  Ledger ledger = device_of(4);
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, 4000);
  CHECK(ledger.regions().engage(claim, 3).has_value());
  ledger.grant(claim.slot, 2000);
  CHECK_EQUAL(ledger.usage(claim.slot).held_bytes, 2000U);
  CHECK(ledger.regions().withdraw(4) == (std::vector<std::uint64_t>{2, 1}));
  ledger.regions().disengage(claim, 3);
  ledger.grant(claim.slot, 1000);
  CHECK(ledger.regions().withdraw(4) == std::vector<std::uint64_t>{3});
}
