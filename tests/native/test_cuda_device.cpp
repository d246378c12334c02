#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "cuda_kernels.hpp"
#include "cuda_scene.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;
using namespace std::chrono_literals;

namespace {

// The handle of a second computing stream, the same for the whole run.
StreamHandle side_stream() { return reinterpret_cast<StreamHandle>(fake_cuda::side_stream()); }

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

TEST(every_failing_call_is_named_and_leaves_no_resource) {
  // Calls whose failure raises no fault: releases by destructors, and the cleanup after another failure.
  const std::set<std::string> quiet{"cuCtxPopCurrent",           "cuCtxPushCurrent",   "cuCtxSynchronize",
                                    "cuDevicePrimaryCtxRelease", "cuEventDestroy",     "cuMemAddressFree",
                                    "cuMemHostUnregister",       "cuMemRelease",       "cuMemUnmap",
                                    "cuStreamDestroy",           "cuStreamSynchronize"};
  std::set<std::string> named;
  std::vector results{Result::invalid_value, Result::out_of_memory, Result::device_unavailable};
  if (check::few_draws()) results.resize(1);
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
