// Tests that a window leaves whole regions to other jobs, so that a lowered grant can take regions back.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "arena.hpp"
#include "check.hpp"
#include "ledger.hpp"
#include "pieces.hpp"
#include "window.hpp"

using namespace tensile;

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

// A job that owns some regions of a device, with a window for its block.
struct Scene {
  explicit Scene(std::uint64_t region_bytes, std::uint64_t granted_bytes)
      : ledger(Ledger::create({64 * mib, region_bytes, 1, 1, ""})), claim(ledger.claim_slot(1)) {
    ledger.grant(claim.slot, granted_bytes);
    arena = std::make_unique<Arena>(Ledger::attach(ledger.fd()), claim, ArenaShape{});
    window = std::make_unique<Window>(std::make_unique<PagePieces>(arena->hook()));
  }

  std::uint64_t held_bytes_after(std::uint64_t granted_bytes) {
    ledger.grant(claim.slot, granted_bytes);
    return ledger.usage(claim.slot).held_bytes;
  }

  Ledger ledger;
  Claim claim;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Window> window;
};

}  // namespace

TEST(a_block_beside_another_allocation_takes_and_leaves_whole_regions) {
  for (const std::uint64_t region_bytes : {mib / 4, mib, 4 * mib}) {
    for (const std::uint64_t other_bytes : {std::uint64_t{64}, mib}) {
      Scene scene(region_bytes, 16 * mib);
      std::byte* const other = scene.arena->allocate(other_bytes);
      CHECK(scene.window->resize(8 * mib));
      scene.arena->free(other);
      CHECK_EQUAL(scene.held_bytes_after(8 * mib), 8 * mib);
    }
  }
}

TEST(a_shrinking_block_releases_the_regions_by_which_its_grant_is_lowered) {
  Scene scene(4 * mib, 16 * mib);
  std::byte* const other = scene.arena->allocate(3 * mib);
  CHECK(scene.window->resize(12 * mib));
  scene.arena->free(other);
  CHECK(scene.window->resize(5 * mib));
  CHECK_EQUAL(scene.held_bytes_after(8 * mib), 8 * mib);
}

TEST(a_block_spread_over_regions_moves_to_whole_regions_once_they_are_empty) {
  Scene scene(4 * mib, 12 * mib);
  std::vector<std::byte*> others;
  for (std::uint64_t region = 0; region < 3; ++region) {  // one allocation in every region
    others.push_back(scene.arena->allocate_at(region * 4 * mib + mib, 64));
  }
  CHECK(scene.window->resize(2 * mib));  // less than a region: takes the free part of a region
  std::memset(reinterpret_cast<void*>(scene.window->begin()), 7, 2 * mib);
  scene.arena->free(others[0]);
  scene.arena->free(others[1]);
  CHECK_EQUAL(scene.window->kept(2 * mib), 2 * mib);
  CHECK_EQUAL(scene.window->kept(2 * mib, true), 0U);
  CHECK(scene.window->resize(2 * mib));
  CHECK_EQUAL(static_cast<unsigned>(*reinterpret_cast<unsigned char*>(scene.window->begin())), 7U);
  CHECK(scene.window->resize(2 * mib, true));
  CHECK_EQUAL(scene.window->kept(2 * mib, true), 2 * mib);
  scene.arena->free(others[2]);
  CHECK_EQUAL(scene.held_bytes_after(4 * mib), 4 * mib);
}
