#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>

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
    send_bytes(aside.trainer.number(), std::array{std::byte{1}, std::byte{1}});
    few.send(aside.broker.number());
    receive_bytes(aside.trainer.number(), greeting);
    send_bytes(sockets.broker.number(), greeting);  // announces regions and sends none
    receive_bytes(sockets.broker.number(), std::span(greeting).first(1));
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
  CHECK_FAULT(device, "is no broker of regions, version 2",
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
