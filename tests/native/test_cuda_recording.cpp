#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/torch_allocator.hpp"
#include "cuda_scene.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t tensor_bytes = 250'000;  // three chunks

StreamPointer stream() { return fake_cuda::side_stream(); }
StreamHandle computing() { return reinterpret_cast<StreamHandle>(stream()); }

// One iteration: fills a tensor with the number in `input`, swaps the tensor out, uses its memory for another
// computation, swaps the tensor back and adds up its bytes in `sum`.
struct Iteration {
  explicit Iteration(CudaDevice& used) : device(used) {
    device.compute_on(computing());
    input = device.allocate(tensor_bytes);
    tensor = device.allocate(tensor_bytes);
    staged = device.host_allocate(tensor_bytes);
    swapped = device.host_allocate(tensor_bytes);
  }
  Iteration(const Iteration&) = delete;
  Iteration& operator=(const Iteration&) = delete;
  ~Iteration() {
    device.drain_for(60s);
    device.free(input);
    device.free(tensor);
    device.host_free(staged);
    device.host_free(swapped);
  }

  void queue() {
    device.compute_after(carried);  // a copy that continues from the previous iteration, whether recorded or not
    const Ticket uploaded = device.copy_in(input, staged, tensor_bytes);
    device.compute_after(uploaded);
    kernel({{input, tensor_bytes, false}, {tensor, tensor_bytes, true}},
           [this] { std::memcpy(at(tensor), at(input), tensor_bytes); });
    device.copy_out(swapped, tensor, tensor_bytes);
    device.order_before_use(tensor, tensor_bytes, computing());
    kernel({{tensor, tensor_bytes, true}}, [this] { std::memset(at(tensor), 0xee, tensor_bytes); });
    carried = device.copy_in(tensor, swapped, tensor_bytes);
    device.compute_after(carried);
    kernel({{tensor, tensor_bytes, false}}, [this] {
      for (std::size_t i = 0; i < tensor_bytes; ++i) sum += static_cast<unsigned char>(at(tensor)[i]);
    });
  }

  std::shared_ptr<const fake_cuda::Graph> record() {
    fake_cuda::begin_capture(stream());
    device.begin_recording();
    queue();
    copied = device.end_recording();
    return fake_cuda::end_capture(stream());
  }

  // Set the next batch, after all computation with the previous batch is done.
  void give(unsigned char value) {
    fake_cuda::settle();
    std::memset(staged, value, tensor_bytes);
  }

  static void kernel(std::vector<fake_cuda::Access> accesses, std::function<void()> body) {
    fake_cuda::launch(stream(), std::move(accesses), std::move(body));
  }
  static char* at(DeviceAddress address) { return reinterpret_cast<char*>(address); }

  CudaDevice& device;
  DeviceAddress input = 0;
  DeviceAddress tensor = 0;
  std::byte* staged = nullptr;
  std::byte* swapped = nullptr;
  CudaDevice::Copied copied{};
  Ticket carried = 0;
  std::uint64_t sum = 0;
};

}  // namespace

TEST(a_recorded_iteration_repeats_its_work_on_other_bytes) {
  for (unsigned int seed = 1; seed <= check::draws(30); ++seed) {
    const Checked checked(seed);
    Scene scene(2 * mib);
    Iteration iteration(*scene.device);
    iteration.give(1);
    iteration.queue();
    fake_cuda::settle();
    CHECK_EQUAL(iteration.sum, tensor_bytes);
    CHECK(scene.device->drain_for(60s));
    const auto graph = iteration.record();
    CHECK(graph != nullptr);
    fake_cuda::settle();
    CHECK_EQUAL(iteration.sum, tensor_bytes);  // recording computes nothing
    for (unsigned char value = 2; value <= 4; ++value) {
      iteration.give(value);
      iteration.sum = 0;
      fake_cuda::replay(graph, stream());
      scene.device->count(iteration.copied);
      fake_cuda::settle();
      CHECK_EQUAL(iteration.sum, value * tensor_bytes);
    }
    iteration.give(9);
    iteration.sum = 0;
    iteration.queue();  // and again without the recording
    fake_cuda::settle();
    CHECK_EQUAL(iteration.sum, 9 * tensor_bytes);
    CHECK(scene.device->drain_for(60s));
    CHECK_EQUAL(scene.ledger.words().out.reserved_bytes.load(), 5 * tensor_bytes);
    CHECK_EQUAL(scene.ledger.words().in.reserved_bytes.load(), 10 * tensor_bytes);
    CHECK(scene.ledger.words().in.reserved_ns.load() > 0);
  }
}

TEST(without_a_capture_or_during_a_copy_no_recording_begins) {
  const Checked checked;
  Scene scene(2 * mib);
  Iteration iteration(*scene.device);
  CHECK_FAULT(invariant, "the computing stream is not being recorded", iteration.device.begin_recording());
  fake_cuda::hold(true);
  iteration.device.copy_out(iteration.swapped, iteration.tensor, 1000);
  fake_cuda::begin_capture(stream());
  CHECK_FAULT(invariant, "recording begins while a copy is under way", iteration.device.begin_recording());
  fake_cuda::drop_capture(stream());
  fake_cuda::hold(false);
  CHECK(iteration.device.drain_for(60s));
  iteration.queue();
  CHECK(iteration.device.drain_for(60s));
  CHECK(iteration.record() != nullptr);
}

TEST(a_call_that_a_capture_forbids_is_not_made_and_ends_the_recording) {
  const Checked checked;
  Scene scene(2 * mib);
  CudaDevice& device = *scene.device;
  device.allow_outside(mib);
  Iteration iteration(device);
  const DeviceAddress outside = device.allocate_outside(1000);
  fake_cuda::begin_capture(stream());
  device.begin_recording();
  CHECK_FAULT(device, "torch asks for memory that no plan foresaw", device.allocate_outside(1000));
  CHECK_FAULT(device, "the host waits for a copy", device.drain_for(60s));
  CHECK_FAULT(device, "recording has begun already", device.begin_recording());
  CHECK(device.free_outside(outside));
  CHECK_FAULT(device, "an iteration cannot be recorded: the iteration freed memory that it had not allocated",
              device.end_recording());
  CHECK_EQUAL(device.outside_bytes(), 1000U);
  fake_cuda::drop_capture(stream());
  device.give_up_recording();
  CHECK_EQUAL(device.outside_bytes(), 0U);
  iteration.give(5);
  iteration.queue();
  fake_cuda::settle();
  CHECK_EQUAL(iteration.sum, 5 * tensor_bytes);
}

TEST(after_a_failed_recording_the_device_continues_without_a_graph) {
  std::uint64_t failed = 0;
  for (std::uint64_t number = 1;; ++number) {
    const Checked checked;
    Scene scene(2 * mib);
    Iteration iteration(*scene.device);
    iteration.queue();
    fake_cuda::settle();
    CHECK(iteration.device.drain_for(60s));
    fake_cuda::begin_capture(stream());
    fake_cuda::fail_call(number, Result::capture_invalidated);
    bool raised = false;
    try {
      iteration.device.begin_recording();
      iteration.queue();
      iteration.device.end_recording();
    } catch (const Fault& fault) {
      raised = true;
      CHECK(fault.kind() == Fault::Kind::device);
    }
    const bool all = fake_cuda::failed_call().empty();
    fake_cuda::fail_call(0, Result::success);
    fake_cuda::drop_capture(stream());
    iteration.device.give_up_recording();
    CHECK(all || raised || fake_cuda::failed_call() == "cuCtxPopCurrent");
    failed += raised;
    iteration.sum = 0;
    iteration.give(3);
    iteration.queue();
    fake_cuda::settle();
    CHECK_EQUAL(iteration.sum, 3 * tensor_bytes);
    if (all) break;
  }
  CHECK(failed > 20);
}

TEST(memory_that_outlives_every_plan_is_allocated_outside_the_regions) {
  const Checked checked;
  Scene scene;
  CudaDevice& device = *scene.device;
  device.allow_outside(mib);
  serve_torch(&device);
  allocate_beside(true);
  void* word = tensile_cuda_allocate(8, 0, nullptr);
  allocate_beside(false);
  void* tensor = tensile_cuda_allocate(1000, 0, nullptr);
  CHECK_EQUAL(device.outside_bytes(), 8U);
  CHECK_EQUAL(device.arena().usage().requested_bytes, 1000U);
  tensile_cuda_free(word, 8, 0, nullptr);
  tensile_cuda_free(tensor, 1000, 0, nullptr);
  serve_torch(nullptr);
}

// torch 2.13 allocates the seeds of its random numbers after the capture has begun.
TEST(memory_outside_the_regions_may_be_allocated_at_the_start_of_a_capture) {
  const Checked checked;
  Scene scene;
  scene.device->compute_on(computing());
  scene.device->allow_outside(mib);
  serve_torch(scene.device.get());
  allocate_beside(true);
  fake_cuda::begin_capture(stream());
  fake_cuda::relax(true);
  void* word = tensile_cuda_allocate(8, 0, nullptr);
  fake_cuda::relax(false);
  allocate_beside(false);
  scene.device->begin_recording();
  scene.device->end_recording();
  CHECK(fake_cuda::end_capture(stream()) != nullptr);
  CHECK_EQUAL(scene.device->outside_bytes(), 8U);
  tensile_cuda_free(word, 8, 0, nullptr);
  CHECK_EQUAL(scene.device->outside_bytes(), 0U);
  serve_torch(nullptr);
}
