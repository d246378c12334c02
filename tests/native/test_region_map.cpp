#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cuda_scene.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;

namespace {

std::byte* pointer(Address address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

TEST(a_region_has_the_same_offset_and_the_same_bytes_in_every_process) {
  const Checked checked;
  const RegionBroker broker(driver(), {0, region_bytes, 3});
  const RegionMap first = mapped(broker);
  const RegionMap second = mapped(broker);
  CHECK(first.base() != second.base());
  for (std::uint64_t index = 0; index < 3; ++index) {
    *pointer(first.base() + index * region_bytes + 5) = static_cast<std::byte>(index + 1);
  }
  for (std::uint64_t index = 0; index < 3; ++index) {
    CHECK(*pointer(second.base() + index * region_bytes + 5) == static_cast<std::byte>(index + 1));
  }
  CHECK_EQUAL(second.shape().count, 3U);
  CHECK_EQUAL(second.shape().region_bytes, region_bytes);
}

TEST(mapped_memory_outlives_its_broker) {
  const Checked checked;
  auto broker = std::make_unique<RegionBroker>(driver(), RegionShape{0, region_bytes, 1});
  const RegionMap map = mapped(*broker);
  broker.reset();
  *pointer(map.base()) = std::byte{1};
  CHECK(*pointer(map.base()) == std::byte{1});
}

TEST(more_regions_than_a_process_may_open_descriptors_are_passed) {
  const Checked checked;
  const RegionBroker broker(driver(), {0, region_bytes, 128});
  const Sockets sockets;
  std::thread sender([&] { broker.send(sockets.broker.number()); });
  const RegionMap map = RegionMap::receive(driver(), 0, sockets.trainer.number());
  sender.join();
  CHECK(map.holds(map.base(), 128 * region_bytes));
}

TEST(an_unsupported_region_size_is_refused_with_both_sizes) {
  const Checked checked;
  CHECK_FAULT(device, "regions of 3145728 bytes: device 0 gives memory in units of 2097152 bytes",
              RegionBroker(driver(), {0, 3 * mib, 2}));
  CHECK_FAULT(device, "regions of 0 bytes", RegionMap::reserve(driver(), {0, 0, 2}));
  CHECK_FAULT(invariant, "a device of 0 regions", RegionBroker(driver(), {0, region_bytes, 0}));
  try {
    RegionBroker(driver(), {0, 5 * mib, 2});
  } catch (const Fault& fault) {
    CHECK_EQUAL(fault.hint(), std::string("Set the region size to a multiple of 2097152 bytes, such as 4194304."));
  }
}

TEST(a_device_with_too_little_memory_is_reported_with_the_region) {
  const Checked checked;
  CHECK_FAULT(memory,
              "device 0: allocating region 128 of 200, 2097152 bytes: cuMemCreate failed: "
              "CUDA_ERROR_OUT_OF_MEMORY (the fake driver's words)",
              RegionBroker(driver(), {0, region_bytes, 200}));
}

TEST(a_trainer_that_ends_while_regions_are_passed_is_a_fault_in_the_broker) {
  const Checked checked;
  const RegionBroker broker(driver(), {0, region_bytes, 2});
  Sockets sockets;
  sockets.trainer = FileDescriptor();
  CHECK_FAULT(device, "the other process closed the socket", broker.send(sockets.broker.number()));
}

TEST(a_broker_that_ends_while_regions_are_passed_leaves_no_resource) {
  const Checked checked;
  const RegionBroker broker(driver(), {0, region_bytes, 65});
  Sockets sockets;
  std::thread sender([&] {
    std::array<std::byte, 32> greeting{};
    const RegionBroker few(driver(), {0, region_bytes, 1});
    const Sockets aside;
    send_answer(aside.trainer.number(), change_done);
    few.greet(aside.broker.number());
    receive_bytes(aside.trainer.number(), greeting);
    send_bytes(sockets.broker.number(), greeting);
    receive_answer(sockets.broker.number());
    send_change(sockets.broker.number(), {ChangeKind::add, {0}});  // announces a region and sends none
    sockets.broker = FileDescriptor();
  });
  CHECK_FAULT(device, "taking over 1 descriptors: the other process closed the socket",
              RegionMap::receive(driver(), 0, sockets.trainer.number()));
  sender.join();
}

TEST(a_peer_that_is_no_broker_is_refused) {
  const Checked checked;
  const Sockets sockets;
  send_bytes(sockets.broker.number(), std::array<std::byte, 32>{});
  CHECK_FAULT(device, "is no broker of regions, version 3",
              RegionMap::receive(driver(), 0, sockets.trainer.number()));
}

TEST(a_process_without_a_broker_maps_and_releases_its_own_memory) {
  const Checked checked;
  RegionMap map = RegionMap::reserve(driver(), {0, region_bytes, 4});
  CHECK(!map.holds(map.base(), 1));
  map.add(1, 2);
  CHECK(map.holds(map.base() + region_bytes, 2 * region_bytes));
  CHECK(!map.holds(map.base() + region_bytes, 2 * region_bytes + 1));
  CHECK(!map.holds(map.base() + region_bytes - 1, 2));
  CHECK(!map.holds(map.base() - 1, 2) && !map.holds(map.base() + 3 * region_bytes - 1, UINT64_MAX));
  std::memset(pointer(map.base() + region_bytes), 7, 2 * region_bytes);
  CHECK_FAULT(invariant, "region 2: there are 4, and none is mapped twice", map.add(2, 1));
  CHECK_FAULT(invariant, "region 4: there are 4", map.add(3, 2));
  CHECK(!map.holds(map.base() + 3 * region_bytes, 1));
  map.remove(1, 1);
  CHECK(!map.holds(map.base() + region_bytes, 1) && map.holds(map.base() + 2 * region_bytes, 1));
  map.add(0, 2);
  CHECK(map.holds(map.base(), 3 * region_bytes));
}

namespace {

// A broker and a trainer that follows its changes, in one process.
struct Shared {
  explicit Shared(std::uint64_t count) : broker(driver(), {0, region_bytes, count}) {
    std::thread sender([&] { broker.send(sockets.broker.number()); });
    map.emplace(RegionMap::receive(driver(), 0, sockets.trainer.number()));
    sender.join();
  }

  void release(const std::vector<std::uint64_t>& regions) {
    RegionBroker::remove(sockets.broker.number(), regions);
    broker.release(regions);
  }

  void create(const std::vector<std::uint64_t>& regions) {
    broker.add(sockets.broker.number(), broker.create(regions));
  }

  bool holds(std::uint64_t region) const { return map->holds(map->base() + region * region_bytes, region_bytes); }

  const PrimaryContext context{driver(), 0};
  const Current current{context};
  Sockets sockets;
  RegionBroker broker;
  std::optional<RegionMap> map;
};

}  // namespace

TEST(memory_of_released_regions_returns_to_the_device_and_can_be_allocated_by_others) {
  const Checked checked;
  Shared shared(100);
  CHECK_EQUAL(fake_cuda::used_bytes(), 100 * region_bytes);
  std::vector<std::uint64_t> most;
  for (std::uint64_t region = 2; region < 99; ++region) most.push_back(region);
  shared.release(most);
  CHECK_EQUAL(fake_cuda::used_bytes(), 3 * region_bytes);
  CHECK(shared.holds(0) && shared.holds(1) && !shared.holds(2) && !shared.holds(98) && shared.holds(99));
  CHECK(shared.broker.present() == (std::vector<std::uint64_t>{0, 1, 99}));
  {
    RegionMap others = RegionMap::reserve(driver(), {0, region_bytes, 120});
    others.add(0, 120);
    // 5 of the 97 regions fit beside the other program.
    CHECK(shared.broker.create(most) == (std::vector<std::uint64_t>{2, 3, 4, 5, 6}));
  }
  shared.broker.add(shared.sockets.broker.number(), {2, 3, 4, 5, 6});
  CHECK(shared.holds(6) && !shared.holds(7));
  *pointer(shared.map->base() + 6 * region_bytes) = std::byte{1};
  shared.create({8, 10, 11});
  // The question comes first: its lock shows the thread sanitizer that the regions were mapped before they are used.
  CHECK(shared.holds(8) && !shared.holds(9) && shared.holds(11));
  std::memset(pointer(shared.map->base() + 10 * region_bytes), 1, 2 * region_bytes);
}

TEST(a_trainer_that_starts_after_a_release_maps_the_regions_that_exist) {
  const Checked checked;
  Shared shared(4);
  shared.release({1});
  const RegionMap later = mapped(shared.broker);
  CHECK(later.holds(later.base(), region_bytes) && !later.holds(later.base() + region_bytes, 1));
  const PrimaryContext context(driver(), 0);
  const Current current(context);
  later.touch();
}

TEST(changes_of_regions_wait_while_the_driver_records) {
  const Checked checked;
  Shared shared(2);
  std::unique_lock held = shared.map->hold_changes();
  std::thread broker([&] { shared.release({1}); });
  CHECK(shared.holds(1));
  held.unlock();
  broker.join();
  CHECK(!shared.holds(1));
}

TEST(a_region_is_unmapped_only_after_the_work_that_uses_it) {
  const Checked checked;
  Shared shared(2);
  const Address last = shared.map->base() + region_bytes;
  fake_cuda::hold(true);
  fake_cuda::launch(nullptr, {{last, 8, true}}, [last] { std::memset(pointer(last), 1, 8); });
  shared.release({1});  // the double reports a violation if queued work still uses the memory
  CHECK_EQUAL(fake_cuda::queued(nullptr), 0U);
}

TEST(a_trainer_that_cannot_map_a_region_refuses_and_the_broker_learns_of_it) {
  const Checked checked;
  Shared shared(2);
  shared.release({1});
  shared.broker.create({1});
  ::setenv("FAKE_CUDA_IMPORT", "801", 1);
  CHECK_FAULT(device, "the trainer cannot map or unmap regions",
              shared.broker.add(shared.sockets.broker.number(), {1}));
  ::unsetenv("FAKE_CUDA_IMPORT");
  CHECK_FAULT(device, "", RegionBroker::remove(shared.sockets.broker.number(), {0}));
}

TEST(a_trainer_that_ends_during_a_change_is_a_fault_in_the_broker) {
  const Checked checked;
  Shared shared(2);
  shared.map.reset();
  CHECK_FAULT(device, "the other process closed the socket",
              RegionBroker::remove(shared.sockets.broker.number(), {1}));
}

TEST(a_region_without_memory_is_neither_sent_nor_released_twice) {
  const Checked checked;
  Shared shared(2);
  shared.release({1});
  CHECK_FAULT(invariant, "region 1 of 2 has no memory", shared.broker.release({1}));
  CHECK_FAULT(invariant, "region 0 of 2 gets memory and has it already", shared.broker.create({0}));
}
