#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_kernels.hpp"
#include "cuda_scene.hpp"

using namespace tensile;
using namespace tensile::cuda;
using namespace cuda_scene;
using namespace std::chrono_literals;

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
