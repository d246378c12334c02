#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/torch_allocator.hpp"
#include "cuda_scene.hpp"
#include "script.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;

namespace {

// Serves torch from a device during its lifetime.
struct Served {
  Served() { serve_torch(scene.device.get()); }
  ~Served() { serve_torch(nullptr); }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  Scene scene;
};

void compute(void* address, std::size_t size_bytes, CUstream_st* stream) {
  fake_cuda::launch(stream, {{reinterpret_cast<std::uintptr_t>(address), size_bytes, true}}, [] {});
}

}  // namespace

TEST(torch_allocates_and_frees_memory_of_the_jobs_regions) {
  const Checked checked;
  const Served served;
  void* first = tensile_cuda_allocate(1000, 0, nullptr);
  void* second = tensile_cuda_allocate(1, 0, nullptr);
  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(first), served.scene.device->regions().base());
  CHECK_EQUAL(static_cast<std::byte*>(second) - static_cast<std::byte*>(first), 1024);
  CHECK_EQUAL(served.scene.device->arena().usage().requested_bytes, 1001U);
  tensile_cuda_free(first, 1000, 0, nullptr);
  CHECK(tensile_cuda_allocate(1024, 0, nullptr) == first);
  CHECK(tensile_cuda_allocate(0, 0, nullptr) == nullptr);
  tensile_cuda_free(nullptr, 0, 0, nullptr);
  CHECK_FAULT(memory, "regions have no 16777216 bytes in one piece for torch",
              tensile_cuda_allocate(8 * region_bytes, 0, nullptr));
  CHECK_FAULT(device, "memory of device 1, the job's is device 0", tensile_cuda_allocate(1, 1, nullptr));
}

TEST(the_cause_of_torchs_error_is_raised_once_in_place_of_torchs_error) {
  const Checked checked;
  const Served served;
  raise_told("no allocation was refused");
  CHECK_FAULT(memory, "regions have no 18874368 bytes", tensile_cuda_allocate(9 * region_bytes, 0, nullptr));
  raise_told("CUDA error: an illegal memory access was encountered");
  std::string words;
  try {
    tensile_cuda_allocate(9 * region_bytes, 0, nullptr);
  } catch (const std::exception& error) {
    words = text("in a thread of torch's: ", error.what());
  }
  CHECK_FAULT(memory, "regions have no 18874368 bytes", raise_told(words));
  raise_told(words);
}

TEST(without_a_device_torchs_allocations_fail_and_its_frees_succeed) {
  CHECK_FAULT(device, "no device serves it", tensile_cuda_allocate(1, 0, nullptr));
  int nothing = 0;
  tensile_cuda_free(&nothing, 1, 0, nullptr);
  tensile_cuda_record_stream(&nothing, nullptr);
}

TEST(memory_used_on_a_recorded_stream_is_not_reused_before_the_stream_is_done) {
  for (unsigned int seed = 1; seed <= check::draws(20); ++seed) {
    const Checked checked(seed);
    const Served served;
    CUstream_st* side = fake_cuda::side_stream();
    void* tensor = tensile_cuda_allocate(1000, 0, nullptr);
    compute(tensor, 1000, nullptr);
    served.scene.device->order_before_use(reinterpret_cast<std::uintptr_t>(tensor), 1000,
                                          reinterpret_cast<StreamHandle>(side));  // as torch's wait_stream does
    compute(tensor, 1000, side);
    tensile_cuda_record_stream(tensor, side);
    tensile_cuda_free(tensor, 1000, 0, nullptr);
    CHECK(tensile_cuda_allocate(500, 0, nullptr) == tensor);
    compute(tensor, 500, nullptr);
  }
}

TEST(without_the_record_the_fake_driver_detects_the_race) {
  fake_cuda::reset();
  {
    const Served served;
    CUstream_st* side = fake_cuda::side_stream();
    void* tensor = tensile_cuda_allocate(1000, 0, side);
    compute(tensor, 1000, side);
    tensile_cuda_free(tensor, 1000, 0, nullptr);
    CHECK(tensile_cuda_allocate(500, 0, nullptr) == tensor);
    compute(tensor, 500, nullptr);
  }
  CHECK(fake_cuda::violations().find("race: ") != std::string::npos);
  fake_cuda::reset();
}

TEST(a_script_places_torchs_tensors_at_their_planned_addresses) {
  const Checked checked;
  const Served served;
  const tensile_arena_hook& arena = served.scene.device->arena().hook();
  Script script(arena, &tensile_cuda_serve, served.scene.device->pieces());
  void* before = tensile_cuda_allocate(100, 0, nullptr);
  CHECK(script.reserve(4096));
  const std::uintptr_t block = script.block();
  const Sheet sheet{{0, 2}, {{1000, 2048}, {500, 0}}};
  CHECK_EQUAL(script.serve(&sheet), 0);
  *script.position() = 0;
  void* first = tensile_cuda_allocate(1000, 0, nullptr);
  void* second = tensile_cuda_allocate(500, 0, nullptr);
  void* unplanned = tensile_cuda_allocate(700, 0, nullptr);
  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(first), block + 2048);
  CHECK_EQUAL(reinterpret_cast<std::uintptr_t>(second), block);
  tensile_cuda_free(first, 1000, 0, nullptr);
  tensile_cuda_free(before, 100, 0, nullptr);
  CHECK_FAULT(memory, "regions have no 16777216 bytes in one piece for torch",
              tensile_cuda_allocate(8 * region_bytes, 0, nullptr));
  CHECK_EQUAL(script.rest(), 0);
  tensile_cuda_free(second, 500, 0, nullptr);
  tensile_cuda_free(unplanned, 700, 0, nullptr);
  CHECK_EQUAL(script.usage().planned, 2U);
  CHECK_EQUAL(script.usage().used_bytes, 0U);
  CHECK_EQUAL(served.scene.device->arena().usage().requested_bytes, region_bytes);  // the block takes whole regions
}

TEST(a_block_spans_regions_that_are_not_adjacent_and_keeps_their_bytes) {
  const Checked checked;
  const Served served;
  CudaDevice& device = *served.scene.device;
  Script script(device.arena().hook(), &tensile_cuda_serve, device.pieces());
  std::vector<void*> others;
  for (int i = 0; i < 8; ++i) others.push_back(tensile_cuda_allocate(region_bytes, 0, nullptr));
  CHECK(!script.reserve(1));
  for (const int freed : {6, 1, 3}) tensile_cuda_free(others[static_cast<std::size_t>(freed)], 0, 0, nullptr);
  CHECK(script.reserve(2 * region_bytes));
  CHECK_EQUAL(script.kept(3 * region_bytes), 2 * region_bytes);
  auto* block = reinterpret_cast<std::byte*>(script.block());
  std::memset(block, 0x5A, 2 * region_bytes);
  CHECK(static_cast<std::byte*>(others[1])[5] == std::byte{0x5A});  // the first two free regions, in ascending order
  CHECK(static_cast<std::byte*>(others[3])[5] == std::byte{0x5A});
  CHECK(script.reserve(3 * region_bytes));
  CHECK(!script.reserve(4 * region_bytes));
  CHECK(block[2 * region_bytes - 1] == std::byte{0x5A});
  std::byte* host = device.host_allocate(1000);
  device.wait_for(device.copy_out(host, script.block() + region_bytes - 500, 1000), std::chrono::seconds(60));
  CHECK(host[999] == std::byte{0x5A});
  device.host_free(host);
  CHECK(script.reserve(0));
  CHECK_FAULT(invariant, "which this device does not own",
              device.copy_in(script.block(), device.host_allocate(1), 1));
  CHECK_EQUAL(device.arena().usage().requested_bytes, 5 * region_bytes);
}

TEST(memory_beyond_the_regions_comes_from_the_driver_up_to_a_limit) {
  const Checked checked;
  const Served served;
  CudaDevice& device = *served.scene.device;
  device.allow_outside(10 * region_bytes);
  void* outside = tensile_cuda_allocate(9 * region_bytes, 0, nullptr);
  CHECK_EQUAL(device.outside_bytes(), 9 * region_bytes);
  CHECK_FAULT(memory, text("and ", 9 * region_bytes, " bytes outside them are in use"),
              tensile_cuda_allocate(9 * region_bytes, 0, nullptr));
  tensile_cuda_free(outside, 9 * region_bytes, 0, nullptr);
  CHECK_EQUAL(device.outside_bytes(), 0U);
}

TEST(a_lost_device_is_reported_at_an_allocation_and_not_at_a_release) {
  const Checked checked;
  const Served served;
  void* tensor = tensile_cuda_allocate(1000, 0, nullptr);
  fake_cuda::lose(Result::device_unavailable);
  tensile_cuda_free(tensor, 1000, 0, fake_cuda::side_stream());
  CHECK_FAULT(lost, "cuCtxPushCurrent failed: CUDA_ERROR_DEVICE_UNAVAILABLE",
              tensile_cuda_allocate(1000, 0, fake_cuda::side_stream()));
}

TEST(after_its_device_is_closed_torch_cannot_allocate_and_its_frees_do_nothing) {
  const Checked checked;
  void* tensor = nullptr;
  {
    const Scene scene;
    serve_torch(scene.device.get());
    tensor = tensile_cuda_allocate(1000, 0, nullptr);
  }
  tensile_cuda_record_stream(tensor, fake_cuda::side_stream());
  tensile_cuda_free(tensor, 1000, 0, nullptr);
  CHECK_FAULT(device, "no device serves it", tensile_cuda_allocate(1000, 0, nullptr));
}

TEST(a_stream_that_uses_a_tensor_in_every_iteration_is_awaited_once) {
  const Checked checked;
  const Served served;
  void* tensor = tensile_cuda_allocate(1000, 0, nullptr);
  for (int iteration = 0; iteration < 1000; ++iteration) {
    tensile_cuda_record_stream(tensor, fake_cuda::side_stream());
  }
  fake_cuda::fail_call(100, Result::unknown);
  tensile_cuda_free(tensor, 1000, 0, nullptr);
  CHECK_EQUAL(fake_cuda::failed_call(), "");
  fake_cuda::fail_call(0, Result::success);
}

TEST(a_refusal_is_reported_once_and_separately_if_no_grant_could_satisfy_it) {
  const Checked checked;
  const Served served;
  CudaDevice& device = *served.scene.device;
  take_refusal();
  void* tensor = tensile_cuda_allocate(region_bytes, 0, nullptr);
  CHECK_EQUAL(take_refusal().needed_bytes, 0U);
  CHECK_FAULT(memory, "in one piece", tensile_cuda_allocate(9 * region_bytes, 0, nullptr));
  Refusal refusal = take_refusal();
  CHECK_EQUAL(refusal.needed_bytes, 10 * region_bytes);
  CHECK_EQUAL(refusal.grantable_bytes, 0U);
  Ledger::attach(served.scene.ledger.fd()).grant(served.scene.claim.slot, 2 * region_bytes);
  device.allow_outside(4 * region_bytes);
  void* outside = tensile_cuda_allocate(3 * region_bytes, 0, nullptr);
  refusal = take_refusal();
  CHECK_EQUAL(refusal.grantable_bytes, 4 * region_bytes);
  CHECK_EQUAL(take_refusal().needed_bytes, 0U);
  allocate_beside(true);
  void* workspace = tensile_cuda_allocate(region_bytes, 0, nullptr);
  allocate_beside(false);
  CHECK_EQUAL(take_refusal().needed_bytes, 0U);
  for (void* address : {tensor, outside, workspace}) tensile_cuda_free(address, 1, 0, nullptr);
}
