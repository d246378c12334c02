// Tests of the pinned memory that all processes have together, at every instant and after one of them was killed.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <new>
#include <random>
#include <vector>

#include "account.hpp"
#include "check.hpp"
#include "host_pool.hpp"
#include "ledger.hpp"

using namespace tensile;

namespace {

constexpr std::uint64_t page = 4096;
constexpr std::uint64_t limit_bytes = 64 * page;
constexpr std::uint64_t region = 1000;
constexpr int for_ever = 1 << 30;

Ledger pinning_ledger() {
  return Ledger::create({20 * region, region, 1'000'000, 1'000'000, std::nullopt, limit_bytes});
}

// Counts the memory that processes really have, independently of the ledger.
struct Witness {
  std::atomic<std::int64_t> real_bytes = 0;
  std::atomic<std::int64_t> most_bytes = 0;
  std::atomic<std::uint64_t> refusals = 0;
  std::atomic<std::uint64_t> turns = 0;

  void change(std::int64_t by_bytes) {
    const std::int64_t now_bytes = real_bytes.fetch_add(by_bytes) + by_bytes;
    std::int64_t seen = most_bytes.load();
    while (seen < now_bytes && !most_bytes.compare_exchange_weak(seen, now_bytes)) {
    }
  }
};

// Return a witness in shared memory, which forked processes share.
Witness& shared_witness() {
  void* const place = ::mmap(nullptr, sizeof(Witness), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (place) Witness();
}

HostSupply watched(Witness& witness) {
  return {[&witness](std::byte* address, std::size_t size_bytes) {
            populate(address, size_bytes);
            witness.change(static_cast<std::int64_t>(size_bytes));
          },
          [&witness](std::byte* address, std::size_t size_bytes) {
            witness.change(-static_cast<std::int64_t>(size_bytes));
            discard(address, size_bytes);
          }};
}

// Replace the pool's buffers again and again and fit the pool to them, as changing plans do.
void exchange_plans(int fd, const Claim& claim, Witness& witness, int turns) {
  Account account(Ledger::attach(fd), claim);
  HostPool pool(limit_bytes, account.counted(watched(witness)));
  std::minstd_rand random(claim.slot + 1);
  std::vector<std::byte*> buffers;
  for (int turn = 0; turn < turns || witness.refusals < 10; ++turn) {
    for (std::byte*& buffer : buffers) pool.free(std::exchange(buffer, nullptr));
    buffers.clear();
    pool.pack();
    const std::uint64_t pages = random() % 40;
    try {
      pool.resize_tail(pages * page);
      for (std::uint64_t number = 0; number < pages; ++number) buffers.push_back(pool.allocate(page));
    } catch (const Fault& fault) {
      CHECK(fault.kind() == Fault::Kind::memory);
      ++witness.refusals;
    }
    ++witness.turns;
  }
}

pid_t start(const Ledger& ledger, const Claim& claim, Witness& witness, int turns) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  exchange_plans(ledger.fd(), claim, witness, turns);
  ::_exit(0);
}

bool ended_well(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

// Runs until the processes have refused each other memory often enough.
TEST(the_pinned_memory_of_all_processes_never_exceeds_the_setting) {
  Ledger ledger = pinning_ledger();
  Witness& witness = shared_witness();
  std::vector<pid_t> children;
  for (std::uint64_t number = 0; number < 4; ++number) {
    children.push_back(start(ledger, ledger.claim_slot(number), witness, 60));
  }
  for (const pid_t child : children) CHECK(ended_well(child));
  CHECK(witness.most_bytes.load() <= static_cast<std::int64_t>(limit_bytes));
  CHECK_EQUAL(witness.real_bytes.load(), 0);
  CHECK_EQUAL(ledger.usage().host_bytes, 0U);
}

TEST(exactly_the_share_of_a_killed_process_is_returned) {
  Ledger ledger = pinning_ledger();
  Witness& lasting = shared_witness();
  Witness& killed = shared_witness();
  const pid_t survivor = start(ledger, ledger.claim_slot(1), lasting, for_ever);
  std::minstd_rand random(5);
  for (int round = 0; round < 25; ++round) {
    const Claim claim = ledger.claim_slot(2);
    const std::uint64_t before = killed.turns.load();
    const pid_t victim = start(ledger, claim, killed, for_ever);
    check::wait_until([&] { return killed.turns.load() > before + random() % 4; });
    ::kill(victim, SIGKILL);
    ::waitpid(victim, nullptr, 0);
    CHECK(ledger.usage(claim.slot).host_bytes <= limit_bytes);
    ledger.release_slot(claim.slot);
    CHECK_EQUAL(ledger.host_shares().of(claim.slot), 0U);
  }
  ::kill(survivor, SIGKILL);
  ::waitpid(survivor, nullptr, 0);
  CHECK(lasting.most_bytes.load() <= static_cast<std::int64_t>(limit_bytes));
  ledger.release_slot(0);
  CHECK_EQUAL(ledger.usage().host_bytes, 0U);
  const Claim all = ledger.claim_slot(3);
  ledger.host_shares().take(all, limit_bytes);
  CHECK_EQUAL(ledger.usage().host_bytes, limit_bytes);
}

TEST(a_share_is_refused_beyond_the_limit_and_after_its_epoch) {
  Ledger ledger = pinning_ledger();
  const Claim first = ledger.claim_slot(1);
  const Claim second = ledger.claim_slot(2);
  HostShares& shares = ledger.host_shares();
  shares.take(first, limit_bytes - page);
  CHECK_FAULT(
      memory,
      "slot 1: the host pool has no 8192 bytes more: of its 262144 bytes this job has 0 and others have 258048",
      shares.take(second, 2 * page));
  CHECK_FAULT(invariant, "slot 1: giving back 1 bytes of the host pool, of which it has 0", shares.give(second, 1));
  shares.take(second, page);
  ledger.revoke_slot(first.slot);
  CHECK_EQUAL(ledger.usage().host_bytes, limit_bytes);  // the memory exists until the process has ended
  ledger.release_slot(first.slot);
  CHECK_FAULT(device, "slot 0: epoch 1 is over", shares.take(first, page));
  CHECK_FAULT(device, "slot 0: epoch 1 is over", shares.give(first, page));
  CHECK_EQUAL(ledger.usage().host_bytes, page);
}

TEST(a_closed_device_returns_its_share) {
  Ledger ledger = pinning_ledger();
  const Claim claim = ledger.claim_slot(1);
  {
    Account account(Ledger::attach(ledger.fd()), claim);
    HostPool pool(limit_bytes, account.counted({}));
    pool.allocate(page);
    CHECK_EQUAL(ledger.usage(claim.slot).host_bytes, limit_bytes);
    const pid_t child = ::fork();
    if (child == 0) {
      pool.~HostPool();  // in the child the pool is a copy: the memory belongs to the parent
      ::_exit(0);
    }
    CHECK(ended_well(child));
    CHECK_EQUAL(ledger.usage(claim.slot).host_bytes, limit_bytes);
  }
  CHECK_EQUAL(ledger.usage(claim.slot).host_bytes, 0U);
}
