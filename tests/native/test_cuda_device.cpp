#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda_scene.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;
using namespace std::chrono_literals;

namespace {

// Launch a kernel that fills memory with a value.
void compute(DeviceAddress address, std::size_t size_bytes, std::byte value, StreamHandle stream = 0) {
  fake_cuda::launch(reinterpret_cast<StreamPointer>(stream), {{address, size_bytes, true}},
                    [=] { std::memset(reinterpret_cast<void*>(address), static_cast<int>(value), size_bytes); });
}

// Launch a kernel that reads memory into `seen` when it runs.
void read(DeviceAddress address, std::size_t size_bytes, std::vector<std::byte>& seen) {
  fake_cuda::launch(nullptr, {{address, size_bytes, false}}, [=, &seen] {
    const auto* memory = reinterpret_cast<const std::byte*>(address);
    seen.assign(memory, memory + size_bytes);
  });
}

// The handle of a second computing stream, the same for the whole run.
StreamHandle side_stream() { return reinterpret_cast<StreamHandle>(fake_cuda::side_stream()); }

std::vector<std::byte> filled(std::size_t size_bytes, int value) {
  return std::vector<std::byte>(size_bytes, static_cast<std::byte>(value));
}

// Use all parts once: broker, passing regions, device, pool, copies both ways, waiting.
void everything() {
  Scene scene;
  CudaDevice& device = *scene.device;
  const DeviceAddress memory = device.allocate(300'000);
  device.host_prepare(mib / 2);
  std::byte* host = device.host_allocate(300'000);
  compute(memory, 300'000, std::byte{3});
  const Ticket out = device.copy_out(host, memory, 300'000);
  device.order_before_use(memory, 300'000, 0);
  compute(memory, 300'000, std::byte{4});
  const Ticket in = device.copy_in(memory, host, 300'000);
  device.compute_after(in);
  const StreamHandle side = side_stream();
  device.free(device.allocate_at(region_bytes, 1000, side), side);
  device.free(memory);
  CHECK(device.wait_for(out, 60s));
  CHECK(device.drain_for(60s));
  device.host_free(host);
}

// Return the kernel's flags of the mapping that contains this address ("VmFlags" in smaps).
std::string mapping_flags(std::uint64_t address) {
  std::ifstream lines("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    char permission = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx %c", &begin, &end, &permission) == 3) {
      inside = begin <= address && address < end;
    } else if (inside && line.rfind("VmFlags:", 0) == 0) {
      return line + ' ';
    }
  }
  return {};
}

}  // namespace

TEST(a_thread_that_waits_for_the_device_sleeps) {
  const Checked checked;
  const Scene scene;
  CHECK_EQUAL(fake_cuda::context_flags(), schedule_blocking);
}

TEST(an_active_context_is_used_without_changes) {
  const Checked checked;
  const Scene scene;
  const PrimaryContext another(driver(), 0);
  CHECK(another.handle() != nullptr);
}

TEST(pinned_memory_has_huge_pages_and_is_not_inherited_by_a_fork) {
  const Checked checked;
  Scene scene(8 * mib);
  scene.device->host_prepare(8 * mib);
  const auto pinned = fake_cuda::pinned();
  CHECK_EQUAL(pinned.size(), 1U);
  CHECK_EQUAL(pinned.front().first % (2 * mib), 0U);
  const std::string flags = mapping_flags(pinned.front().first);
  CHECK(flags.find(" dc ") != std::string::npos);
  CHECK(flags.find(" hg ") != std::string::npos || !std::filesystem::exists("/sys/kernel/mm/transparent_hugepage"));
}

TEST(a_tensor_is_swapped_in_to_memory_that_was_reused_without_a_wait_of_the_host) {
  for (unsigned int seed = 1; seed <= check::draws(30); ++seed) {
    const Checked checked(seed);
    Scene scene;
    CudaDevice& device = *scene.device;
    const DeviceAddress memory = device.regions().base() + 12'345;
    constexpr std::size_t size_bytes = 345'678;
    std::byte* host = device.host_allocate(size_bytes);
    std::vector<std::byte> other;
    std::vector<std::byte> back;
    compute(memory, size_bytes, std::byte{1});
    device.copy_out(host, memory, size_bytes);
    device.order_before_use(memory, size_bytes, 0);  // another tensor is placed in this memory
    compute(memory, size_bytes, std::byte{2});
    read(memory, size_bytes, other);
    const Ticket in = device.copy_in(memory, host, size_bytes);
    device.compute_after(in);
    read(memory, size_bytes, back);
    fake_cuda::settle();
    CHECK(other == filled(size_bytes, 2));
    CHECK(back == filled(size_bytes, 1));
    CHECK(device.drain_for(60s));
    CHECK_EQUAL(scene.ledger.words().out.reserved_bytes.load(), size_bytes);
    CHECK_EQUAL(scene.ledger.words().in.reserved_bytes.load(), size_bytes);
    CHECK(scene.ledger.words().out.reserved_ns.load() >= 4 * 250'000);  // four chunks, 0.25 ms each
  }
}

// The fake driver detects unordered operations; otherwise the test above could pass by chance.
TEST(the_fake_driver_detects_reuse_of_memory_before_its_copies_end) {
  const std::vector<std::function<void(CudaDevice&, DeviceAddress, std::byte*)>> mistakes{
      [](CudaDevice& device, DeviceAddress memory, std::byte* host) {
        device.copy_out(host, memory, 1000);
        compute(memory, 1000, std::byte{2});
      },
      [](CudaDevice& device, DeviceAddress memory, std::byte* host) {
        std::vector<std::byte> seen;
        device.copy_in(memory, host, 1000);
        read(memory + 999, 1, seen);
        fake_cuda::settle();
      }};
  for (const auto& mistake : mistakes) {
    fake_cuda::reset();
    {
      Scene scene;
      mistake(*scene.device, scene.device->regions().base(), scene.device->host_allocate(1000));
    }
    CHECK(fake_cuda::violations().find("race: ") != std::string::npos);
  }
  fake_cuda::reset();
}

TEST(copies_of_one_buffer_in_both_directions_keep_their_order) {
  for (unsigned int seed = 1; seed <= check::draws(20); ++seed) {
    const Checked checked(seed);
    Scene scene;
    CudaDevice& device = *scene.device;
    const DeviceAddress first = device.regions().base();
    const DeviceAddress second = first + mib;
    std::byte* host = device.host_allocate(250'000);
    std::vector<std::byte> seen;
    compute(first, 250'000, std::byte{5});
    device.copy_out(host, first, 250'000);
    device.compute_after(device.copy_in(second, host, 250'000));
    read(second, 250'000, seen);
    compute(first, 250'000, std::byte{6});
    device.copy_out(host, first, 250'000);
    CHECK(device.drain_for(60s));
    fake_cuda::settle();
    CHECK(seen == filled(250'000, 5));
    CHECK_EQUAL(std::to_integer<int>(host[249'999]), 6);
  }
}

TEST(random_swaps_leave_every_tensor_unchanged) {
  constexpr std::size_t tensor_bytes = 12'000;
  constexpr std::size_t places = 4;
  for (unsigned int seed = 1; seed <= check::draws(40); ++seed) {
    const Checked checked(seed);
    std::minstd_rand random(seed);
    Scene scene(4 * mib, 5'000);
    CudaDevice& device = *scene.device;
    struct Tensor {
      std::byte* host;
      std::byte value{};
      std::size_t place = places;  // swapped out
    };
    std::vector<Tensor> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back({device.host_allocate(tensor_bytes)});
    std::array<Tensor*, places> resident{};
    const auto address = [&](std::size_t place) { return device.regions().base() + place * 15'000; };
    std::vector<std::pair<std::vector<std::byte>, std::byte>> read_back(100);
    for (std::size_t turn = 0; turn < 100; ++turn) {
      Tensor& tensor = tensors[random() % tensors.size()];
      if (tensor.place == places) {
        const std::size_t place = random() % places;
        if (Tensor* old = std::exchange(resident[place], &tensor)) {
          device.copy_out(old->host, address(place), tensor_bytes);
          old->place = places;
          device.order_before_use(address(place), tensor_bytes, 0);
        }
        tensor.place = place;
        if (tensor.value != std::byte{}) {
          device.compute_after(device.copy_in(address(place), tensor.host, tensor_bytes));
        }
      }
      if (tensor.value != std::byte{}) read(address(tensor.place), tensor_bytes, read_back[turn].first);
      read_back[turn].second = tensor.value;
      tensor.value = static_cast<std::byte>(random() % 255 + 1);
      compute(address(tensor.place), tensor_bytes, tensor.value);
    }
    CHECK(device.drain_for(60s));
    fake_cuda::settle();
    for (const auto& [seen, value] : read_back) {
      if (value != std::byte{}) CHECK(seen == std::vector<std::byte>(tensor_bytes, value));
    }
  }
}

TEST(no_call_of_a_swap_waits_on_the_host) {
  const Checked checked;
  Scene scene;
  CudaDevice& device = *scene.device;
  std::byte* host = device.host_allocate(1000);
  fake_cuda::hold(true);
  compute(device.regions().base(), 1000, std::byte{1});
  const Ticket out = device.copy_out(host, device.regions().base(), 1000);
  device.compute_after(out);
  device.order_before_use(device.regions().base(), 1000, 0);
  CHECK(!device.done(out));
  CHECK(!device.wait_for(out, 1ms));
  CHECK_FAULT(invariant, "is freed while a copy still uses it", device.host_free(host));
  CHECK_EQUAL(fake_cuda::queued(nullptr), 4U);  // the kernel, the event before the copy, two waits for the copy
  fake_cuda::hold(false);
  CHECK(device.wait_for(out, 60s));
  device.host_free(host);
}

TEST(no_stream_waits_for_a_finished_copy) {
  const Checked checked;
  Scene scene;
  CudaDevice& device = *scene.device;
  std::byte* host = device.host_allocate(1000);
  const Ticket in = device.copy_in(device.regions().base(), host, 1000);
  CHECK(device.wait_for(in, 60s));
  fake_cuda::settle();
  fake_cuda::hold(true);
  device.compute_after(in);
  device.order_before_use(device.regions().base(), 1000, 0);
  CHECK_EQUAL(fake_cuda::queued(nullptr), 0U);
  fake_cuda::hold(false);
}

TEST(a_buffer_across_registrations_is_copied_in_one_part_for_each) {
  const Checked checked;
  Scene scene(40 * mib, 16 * mib);
  CudaDevice& device = *scene.device;
  device.host_prepare(1);  // pins one step of 16 MiB
  std::byte* small = device.host_allocate(15 * mib);
  std::byte* across = device.host_allocate(7 * mib);  // extends into the memory that a second call pins
  std::memset(across, 9, 7 * mib);
  std::vector<std::byte> seen;
  device.compute_after(device.copy_in(device.regions().base(), across, 7 * mib));
  read(device.regions().base(), 7 * mib, seen);
  CHECK(device.drain_for(60s));
  fake_cuda::settle();
  CHECK(seen == filled(7 * mib, 9));
  CHECK(across == small + 15 * mib);
}

TEST(returned_memory_is_unpinned_and_the_rest_of_its_registration_stays_pinned) {
  const Checked checked;
  Scene scene(40 * mib, 16 * mib);
  CudaDevice& device = *scene.device;
  std::byte* const first = device.host_allocate(20 * mib);  // spans two registrations of 16 MiB
  device.host_allocate(1000);
  device.host_free(first);
  const std::vector<HostMove> moved = device.host_pack();
  CHECK_EQUAL(moved.size(), 1U);
  CHECK(moved.front().to == first);
  device.host_fit(4096 - 1024);
  CHECK_EQUAL(device.host_usage().resident_bytes, 4096U);
  CHECK_EQUAL(device.usage().host_bytes, 4096U);
  std::memset(first, 9, 1000);
  std::vector<std::byte> seen;
  device.compute_after(device.copy_in(device.regions().base(), first, 1000));
  read(device.regions().base(), 1000, seen);
  CHECK(device.drain_for(60s));
  fake_cuda::settle();
  CHECK(seen == filled(1000, 9));
}

TEST(host_buffers_are_not_moved_during_a_copy) {
  const Checked checked;
  Scene scene;
  CudaDevice& device = *scene.device;
  std::byte* const host = device.host_allocate(1000);
  fake_cuda::hold(true);
  const Ticket ticket = device.copy_out(host, device.regions().base(), 1000);
  CHECK_FAULT(invariant, "while a copy still uses one", device.host_pack());
  fake_cuda::hold(false);
  CHECK(device.wait_for(ticket, 60s));
  CHECK(device.host_pack().empty());
}

TEST(unmapped_device_memory_is_refused) {
  const Checked checked;
  Scene scene;
  CudaDevice& device = *scene.device;
  std::byte* host = device.host_allocate(1000);
  const DeviceAddress end = device.regions().base() + 8 * region_bytes;
  CHECK_FAULT(invariant, "which this device does not own", device.copy_out(host, end - 999, 1000));
  CHECK_FAULT(invariant, "which this device does not own", device.copy_in(0, host, 1000));
}

TEST(several_threads_may_queue_copies_and_query_them) {
  const Checked checked;
  Scene scene(4 * mib);
  CudaDevice& device = *scene.device;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&device, i] {
      const DeviceAddress memory = device.regions().base() + i * 10'000;
      for (int turn = 0; turn < 20; ++turn) {
        std::byte* host = device.host_allocate(10'000);
        CHECK(device.wait_for(device.copy_out(host, memory, 10'000), 60s));
        CHECK(device.wait_for(device.copy_in(memory, host, 10'000), 60s));
        device.host_free(host);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQUAL(scene.ledger.words().in.reserved_bytes.load(), 800'000U);
}

TEST(every_failing_call_is_named_and_leaves_no_resource) {
  // Calls whose failure raises no fault: releases by destructors, and the cleanup after another failure.
  const std::set<std::string> quiet{"cuCtxPopCurrent",           "cuCtxPushCurrent",   "cuCtxSynchronize",
                                    "cuDevicePrimaryCtxRelease", "cuEventDestroy",     "cuMemAddressFree",
                                    "cuMemHostUnregister",       "cuMemRelease",       "cuMemUnmap",
                                    "cuStreamDestroy",           "cuStreamSynchronize"};
  std::set<std::string> named;
  std::vector results{Result::invalid_value, Result::out_of_memory, Result::device_unavailable};
  if (check::under_thread_sanitizer) results.resize(1);
  for (const Result result : results) {
    for (std::uint64_t number = 1;; ++number) {
      const Checked checked;
      fake_cuda::fail_call(number, result);
      std::string message;
      try {
        everything();
      } catch (const Fault& fault) {
        message = fault.what();
        CHECK(!fault.hint().empty());
        CHECK(fault.kind() == (result == Result::invalid_value   ? Fault::Kind::device
                               : result == Result::out_of_memory ? Fault::Kind::memory
                                                                 : Fault::Kind::lost));
      }
      const std::string failed = fake_cuda::failed_call();
      if (failed.empty()) break;
      if (message.empty()) {
        CHECK(quiet.contains(failed));
        continue;
      }
      CHECK(message.find(failed + " failed: CUDA_ERROR_") != std::string::npos);
      named.insert(failed);
    }
  }
  CHECK((named == std::set<std::string>{"cuCtxPushCurrent",
                                        "cuDeviceGet",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuDevicePrimaryCtxSetFlags",
                                        "cuEventCreate",
                                        "cuEventElapsedTime",
                                        "cuEventQuery",
                                        "cuEventRecord",
                                        "cuMemAddressReserve",
                                        "cuMemCreate",
                                        "cuMemExportToShareableHandle",
                                        "cuMemGetAllocationGranularity",
                                        "cuMemHostRegister",
                                        "cuMemImportFromShareableHandle",
                                        "cuMemMap",
                                        "cuMemSetAccess",
                                        "cuMemcpyDtoHAsync",
                                        "cuMemcpyHtoDAsync",
                                        "cuMemsetD8Async",
                                        "cuStreamCreate",
                                        "cuStreamWaitEvent"}));
}

TEST(a_device_lost_or_a_context_broken_at_any_call_is_reported_and_leaves_no_resource) {
  for (std::uint64_t number = 1; number < 100; number += 3) {
    const Checked checked(static_cast<unsigned int>(number));
    Scene scene;
    CudaDevice& device = *scene.device;
    const DeviceAddress memory = device.regions().base();
    std::byte* host = device.host_allocate(1000);
    for (std::uint64_t copies = 0; copies < number / 10; ++copies) device.copy_out(host, memory, 1000);
    const bool lost = number % 2 == 0;
    fake_cuda::lose(lost ? Result::ecc_uncorrectable : Result::launch_failed);
    const auto check = [lost](auto call) {
      if (lost) {
        CHECK_FAULT(lost, "failed: CUDA_ERROR_ECC", call());
      } else {
        CHECK_FAULT(broken, "failed: CUDA_ERROR_LAUNCH_FAILED", call());
      }
    };
    check([&] { device.copy_out(host, memory, 1000); });
    check([&] { device.drain_for(60s); });
    check([&] { device.compute_after(0); });
    check([&] { device.check_context(); });
  }
}

TEST(memory_freed_by_one_stream_is_reused_by_another_in_order) {
  for (unsigned int seed = 1; seed <= check::draws(20); ++seed) {
    const Checked checked(seed);
    Scene scene;
    CudaDevice& device = *scene.device;
    const StreamHandle side = side_stream();
    const DeviceAddress first = device.allocate(1000, side);
    compute(first, 1000, std::byte{1}, side);
    device.free(first, side);
    const DeviceAddress second = device.allocate(1000);
    CHECK_EQUAL(second, first);
    compute(second, 1000, std::byte{2});
    device.free(second);
    const DeviceAddress third = device.allocate(1000, side);
    CHECK_EQUAL(third, first);
    compute(third, 1000, std::byte{3}, side);
    device.free(third, side);
    device.compute_on(side);
    const DeviceAddress fourth = device.allocate(1000);
    compute(fourth, 1000, std::byte{4}, side);
    device.free(fourth);
  }
}

TEST(the_memory_of_a_swap_out_can_be_freed_and_reused_at_once) {
  for (unsigned int seed = 1; seed <= check::draws(20); ++seed) {
    const Checked checked(seed);
    Scene scene;
    CudaDevice& device = *scene.device;
    std::byte* host = device.host_allocate(250'000);
    const DeviceAddress tensor = device.allocate(250'000);
    compute(tensor, 250'000, std::byte{7});
    const Ticket out = device.copy_out(host, tensor, 250'000);
    device.free(tensor);
    const DeviceAddress other = device.allocate(200'000);
    CHECK_EQUAL(other, tensor);
    compute(other, 200'000, std::byte{8});
    CHECK(device.wait_for(out, 60s));
    CHECK(std::all_of(host, host + 250'000, [](std::byte byte) { return byte == std::byte{7}; }));
  }
}

TEST(a_region_of_another_job_is_cleared_before_its_use) {
  const Checked checked;
  Scene scene;
  std::memset(reinterpret_cast<void*>(scene.device->regions().base()), 9, 2 * region_bytes);
  std::vector<std::byte> seen;
  read(scene.device->allocate(region_bytes + 1), region_bytes + 1, seen);
  fake_cuda::settle();
  CHECK(seen == filled(region_bytes + 1, 0));
}

TEST(a_job_without_a_broker_creates_and_releases_its_own_regions) {
  const Checked checked;
  Scene scene;
  scene.device.reset();
  scene.ledger.grant(scene.claim.slot, 3 * region_bytes);
  CudaDevice device(driver(), Ledger::attach(scene.ledger.fd()), scene.claim,
                    RegionMap::reserve(driver(), {0, region_bytes, 8}), mib);
  const DeviceAddress tensor = device.allocate(2 * region_bytes);
  compute(tensor, 2 * region_bytes, std::byte{1});
  CHECK(!device.regions().holds(tensor, 3 * region_bytes));
  CHECK_FAULT(memory, "the arena has no 4194304 bytes in one piece", device.allocate(2 * region_bytes));
  const DeviceAddress remaining = device.allocate(region_bytes);
  device.free(tensor);
  device.trim();
  CHECK(device.regions().holds(remaining, region_bytes) && !device.regions().holds(tensor, 1));
  scene.ledger.grant(scene.claim.slot, 2 * region_bytes);
  const DeviceAddress again = device.allocate(region_bytes);
  std::vector<std::byte> seen;
  read(again, region_bytes, seen);
  fake_cuda::settle();
  CHECK(seen == filled(region_bytes, 0));
  device.free(again);
  scene.ledger.grant(scene.claim.slot, region_bytes);
  device.trim();
  CHECK(device.regions().holds(remaining, region_bytes) && !device.regions().holds(again, 1));
}

TEST(regions_that_differ_from_the_ledgers_are_refused) {
  const Checked checked;
  Scene scene;
  CHECK_FAULT(device, "device 0: 4 regions of 2097152 bytes are mapped, the ledger has 8 of 2097152",
              CudaDevice(driver(), Ledger::attach(scene.ledger.fd()), scene.claim,
                         RegionMap::reserve(driver(), {0, region_bytes, 4}), mib));
}
