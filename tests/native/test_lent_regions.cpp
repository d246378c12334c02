// A GPU's regions that a round lends to its members, on the fake driver.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda_scene.hpp"
#include "lent_regions.hpp"
#include "passages.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;
using namespace std::chrono_literals;

namespace {

using layout::RegionState;

// One member of a round: two regions of its own, of which none is used here, and places behind them.
struct Member {
  Member(Ledger& shared, const RegionBroker& broker) : ledger(shared), claim(ledger.claim_slot(1)) {
    ledger.grant(claim.slot, 2 * region_bytes);
    device = std::make_unique<CudaDevice>(driver(), Ledger::attach(ledger.fd()), claim, mapped(broker), mib);
    pieces = device->pieces();
    begin = pieces->begin() + 2 * region_bytes;
    lent = device->lent_regions(begin, 3);
  }

  Address at(std::uint32_t place) const { return begin + place * region_bytes; }

  Ledger& ledger;
  Claim claim;
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Pieces> pieces;
  Address begin = 0;
  std::unique_ptr<LentRegions> lent;
};

// A device of 7 regions, of which a round has 3, and its two members.
struct Round {
  Round()
      : ledger(Ledger::create({7 * region_bytes, region_bytes, 1, 1})),
        broker(driver(), {0, region_bytes, 7}),
        first(ledger, broker),
        second(ledger, broker) {
    CHECK_EQUAL(ledger.set_pool(3 * region_bytes), 3 * region_bytes);
  }

  std::uint64_t count(RegionState state) const {
    std::uint64_t count = 0;
    for (std::uint64_t region = 0; region < ledger.regions().count(); ++region) {
      if (ledger.regions().owner(region).state == state) ++count;
    }
    return count;
  }

  Ledger ledger;
  RegionBroker broker;
  Member first;
  Member second;
};

void write(Address address, std::size_t size_bytes, std::byte value, StreamPointer stream = nullptr) {
  fake_cuda::launch(stream, {{address, size_bytes, true}},
                    [=] { std::memset(reinterpret_cast<void*>(address), static_cast<int>(value), size_bytes); });
}

std::byte byte_at(Address address) { return *reinterpret_cast<const std::byte*>(address); }

}  // namespace

TEST(a_place_is_given_back_only_when_kernels_and_copies_queued_there_have_ended) {
  for (unsigned int seed = 1; seed <= check::draws(20); ++seed) {
    const Checked checked(seed);
    Round round;
    Member& owner = round.first;
    CHECK(owner.lent->take_for({0, 1, 2}, 0ns));
    std::byte* out = owner.device->host_allocate(100'000);
    std::byte* in = owner.device->host_allocate(100'000);
    std::memset(in, 4, 100'000);
    fake_cuda::hold(true);
    write(owner.at(0), 2 * region_bytes, std::byte{1});
    owner.device->copy_out(out, owner.at(1), 100'000);
    owner.device->copy_in(owner.at(2), in, 100'000);
    CHECK(fake_cuda::queued(nullptr) > 0);
    owner.lent->give({0, 1, 2});
    CHECK_EQUAL(fake_cuda::queued(nullptr), 0U);
    CHECK_EQUAL(round.count(RegionState::pooled), 3U);
    Member& two = round.second;
    CHECK(two.lent->take_for({0, 1, 2}, 0ns));
    std::memset(reinterpret_cast<void*>(two.at(0)), 2, 3 * region_bytes);
    fake_cuda::hold(false);
    fake_cuda::settle();
    for (std::uint32_t place = 0; place < 3; ++place) CHECK(byte_at(two.at(place)) == std::byte{2});
    CHECK(out[0] == std::byte{1} && out[99'999] == std::byte{1});
    CHECK(owner.device->drain_for(60s));
    owner.device->host_free(out);
    owner.device->host_free(in);
  }
}

TEST(a_kernel_of_another_stream_that_freed_its_memory_ends_before_the_place_is_given_back) {
  const Checked checked;
  Round round;
  Member& owner = round.first;
  CHECK(owner.lent->take_for({0}, 0ns));
  const auto side = reinterpret_cast<StreamHandle>(fake_cuda::side_stream());
  owner.device->order_before_use(owner.at(0), region_bytes, side);
  fake_cuda::hold(true);
  write(owner.at(0), region_bytes, std::byte{1}, fake_cuda::side_stream());
  owner.device->order_after_free(side);
  owner.lent->give({0});
  CHECK_EQUAL(fake_cuda::queued(fake_cuda::side_stream()), 0U);
}

TEST(a_region_that_no_member_has_had_is_cleared_and_the_bytes_of_a_member_pass_to_the_next) {
  const Checked checked;
  Round round;
  std::memset(reinterpret_cast<void*>(round.second.device->regions().base()), 9, 7 * region_bytes);
  CHECK(round.first.lent->take_for({0, 1, 2}, 0ns));
  fake_cuda::settle();
  CHECK(byte_at(round.first.at(0)) == std::byte{0} && byte_at(round.first.at(2) + region_bytes - 1) == std::byte{0});
  write(round.first.at(0), 3 * region_bytes, std::byte{5});
  round.first.lent->give({0, 1, 2});
  CHECK(round.second.lent->take_for({2}, 0ns));
  fake_cuda::settle();
  CHECK(byte_at(round.second.at(2)) == std::byte{5});
}

TEST(a_round_that_repeats_takes_its_places_without_mapping_anything) {
  const Checked checked;
  Round round;
  for (int iteration = 0; iteration < 4; ++iteration) {
    CHECK(round.first.lent->take_for({0, 2}, 0ns));
    CHECK(round.second.lent->take_for({1}, 0ns));
    CHECK(!round.second.lent->take_for({0}, 0ns));
    round.second.lent->give({1});
    round.first.lent->give({0, 2});
  }
  CHECK_EQUAL(round.first.lent->mapped_count() + round.second.lent->mapped_count(), 3U);
}

TEST(a_place_gets_another_region_if_another_member_has_its_own) {
  const Checked checked;
  Round round;
  CHECK(round.first.lent->take_for({0}, 0ns));
  round.first.lent->give({0});
  CHECK(round.second.lent->take_for({0}, 0ns));  // the lowest region: the first member's
  CHECK(round.first.lent->take_for({0}, 0ns));
  write(round.first.at(0), region_bytes, std::byte{1});
  write(round.second.at(0), region_bytes, std::byte{2});
  fake_cuda::settle();
  CHECK(byte_at(round.first.at(0)) == std::byte{1} && byte_at(round.second.at(0)) == std::byte{2});
  CHECK_EQUAL(fake_cuda::used_bytes(), 7 * region_bytes);
  CHECK_EQUAL(round.ledger.usage().granted_bytes, 7 * region_bytes);
}

TEST(a_member_that_ends_leaves_its_addresses_without_memory_and_its_regions_to_the_round) {
  const Checked checked;
  Round round;
  Member& owner = round.first;
  CHECK(owner.lent->take_for({0, 1}, 0ns));
  write(owner.at(0), 1000, std::byte{1});
  owner.lent.reset();
  CHECK_EQUAL(round.count(RegionState::pooled), 3U);
  std::byte* host = owner.device->host_allocate(1000);
  CHECK_FAULT(invariant, "which this device does not own", owner.device->copy_out(host, owner.at(0), 1000));
}

TEST(regions_of_a_member_whose_slot_is_released_are_cleared_before_another_uses_them) {
  const Checked checked;
  Round round;
  CHECK(round.first.lent->take_for({0, 1, 2}, 0ns));
  write(round.first.at(0), 3 * region_bytes, std::byte{7});
  fake_cuda::settle();
  round.ledger.revoke_slot(round.first.claim.slot);
  CHECK(!round.second.lent->take_for({0}, 0ns));
  round.ledger.release_slot(round.first.claim.slot);
  CHECK(round.second.lent->take_for({0, 1, 2}, 0ns));
  fake_cuda::settle();
  CHECK(byte_at(round.second.at(1)) == std::byte{0});
}

TEST(a_failing_call_leaves_every_region_with_one_member_or_the_round) {
  for (std::uint64_t number = 1;; ++number) {
    const Checked checked;
    auto round = std::make_unique<Round>();
    fake_cuda::fail_call(number, Result::device_unavailable);
    std::string message;
    try {
      CHECK(round->first.lent->take_for({0, 1}, 0ns));
      round->first.lent->give({0});
      CHECK(round->second.lent->take_for({0, 1}, 0ns));
      round->second.lent->give({0, 1});
    } catch (const Fault& fault) {
      message = fault.what();
      CHECK(fault.kind() == Fault::Kind::lost);
    }
    const bool failed = !fake_cuda::failed_call().empty();
    if (!message.empty()) CHECK(message.find(fake_cuda::failed_call()) != std::string::npos);
    CHECK_EQUAL(round->count(RegionState::lent) * region_bytes,
                round->first.lent->held_bytes() + round->second.lent->held_bytes());
    CHECK_EQUAL(round->count(RegionState::lent) + round->count(RegionState::pooled), 3U);
    round.reset();
    if (!failed) break;
  }
}

TEST(regions_are_not_lent_to_a_process_with_regions_of_its_own) {
  const Checked checked;
  Ledger ledger = Ledger::create({4 * region_bytes, region_bytes, 1, 1});
  const Claim claim = ledger.claim_slot(1);
  ledger.grant(claim.slot, region_bytes);
  CudaDevice device(driver(), Ledger::attach(ledger.fd()), claim, RegionMap::reserve(driver(), {0, region_bytes, 4}),
                    mib);
  CHECK_FAULT(device, "cannot share memory in phases where each process allocates its own",
              device.lent_regions(0, 1));
}

TEST(places_that_are_not_whole_regions_of_the_window_are_refused) {
  const Checked checked;
  Round round;
  CHECK_FAULT(invariant, "must be whole regions of the window",
              round.first.device->lent_regions(round.first.begin + 1, 1));
  CHECK_FAULT(invariant, "must be whole regions of the window",
              round.first.device->lent_regions(round.first.begin, 6));
}
