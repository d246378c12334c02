// Tests of the behaviour that all devices share: each runs on the emulated device and on the GPU's back end.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check.hpp"
#include "cuda_scene.hpp"
#include "device.hpp"
#include "emulated_device.hpp"

using namespace tensile;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t memory_bytes = 200'000;
constexpr std::uint64_t host_pool_bytes = 1 << 20;

// The device of one job, with some memory of its own.
class Place {
 public:
  virtual ~Place() = default;
  virtual Device& device() = 0;
  virtual Ledger& ledger() = 0;
  virtual DeviceAddress memory() = 0;

  // Keep copies under way until `let_go`.
  virtual void hold() = 0;
  virtual void let_go() = 0;

  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory()); }
};

class EmulatedPlace final : public Place {
 public:
  EmulatedPlace() : ledger_(Ledger::create({1 << 20, 4096, 1'000'000'000'000, 1'000'000'000'000})) {
    claim_ = ledger_.claim_slot(1);
    ledger_.grant(claim_.slot, 1 << 20);
    device_ = std::make_unique<EmulatedDevice>(Ledger::attach(ledger_.fd()), claim_, host_pool_bytes, 1000);
  }

  Device& device() override { return *device_; }
  Ledger& ledger() override { return ledger_; }
  DeviceAddress memory() override { return reinterpret_cast<DeviceAddress>(memory_.data()); }

  // Another job has reserved the links for the next half second.
  void hold() override {
    for (layout::Lane* lane : {&ledger_.words().out, &ledger_.words().in}) lane->free_ns = now_ns() + 500'000'000;
  }
  void let_go() override {}

 private:
  Ledger ledger_;
  Claim claim_{};
  std::vector<std::byte> memory_ = std::vector<std::byte>(memory_bytes);
  std::unique_ptr<EmulatedDevice> device_;
};

class CudaPlace final : public Place {
 public:
  CudaPlace() : scene_(host_pool_bytes, 1000) {}
  ~CudaPlace() override { fake_cuda::hold(false); }

  Device& device() override { return *scene_.device; }
  Ledger& ledger() override { return scene_.ledger; }
  DeviceAddress memory() override { return scene_.device->regions().base(); }
  void hold() override { fake_cuda::hold(true); }
  void let_go() override { fake_cuda::hold(false); }

 private:
  cuda_scene::Checked checked_;
  cuda_scene::Scene scene_;
};

#define DEVICE_TEST(name)                                             \
  static void name(Place& place);                                     \
  TEST(name##_emulated) { name(*std::make_unique<EmulatedPlace>()); } \
  TEST(name##_cuda) { name(*std::make_unique<CudaPlace>()); }         \
  static void name(Place& place)

}  // namespace

DEVICE_TEST(bytes_go_out_and_come_back_whole_whatever_their_number) {
  Device& device = place.device();
  std::uint64_t total_bytes = 0;
  for (const std::size_t size_bytes : {1UL, 999UL, 1000UL, 1001UL, 123'457UL}) {
    for (std::size_t i = 0; i < size_bytes; ++i) place.bytes()[i] = static_cast<std::byte>(i * 31 % 251);
    const std::vector<std::byte> before(place.bytes(), place.bytes() + size_bytes);
    std::byte* host = device.host_allocate(size_bytes);
    const Ticket out = device.copy_out(host, place.memory(), size_bytes);
    CHECK(device.wait_for(out, 60s));
    CHECK(device.done(out));
    std::memset(place.bytes(), 0xEE, size_bytes);
    const Ticket in = device.copy_in(place.memory(), host, size_bytes);
    CHECK(in != out);
    device.compute_after(in);
    CHECK(device.drain_for(60s));
    CHECK(std::equal(before.begin(), before.end(), place.bytes()));
    device.host_free(host);
    total_bytes += size_bytes;
  }
  CHECK_EQUAL(place.ledger().words().out.reserved_bytes.load(), total_bytes);
  CHECK_EQUAL(place.ledger().words().in.reserved_bytes.load(), total_bytes);
}

DEVICE_TEST(a_copy_under_way_keeps_its_buffer_and_a_wait_for_it_ends_in_time) {
  Device& device = place.device();
  std::byte* host = device.host_allocate(1000);
  place.hold();
  const Ticket ticket = device.copy_out(host, place.memory(), 1000);
  CHECK(!device.done(ticket));
  CHECK(!device.wait_for(ticket, 1ms));
  CHECK(!device.drain_for(1ms));
  CHECK_FAULT(invariant, "is freed while a copy still uses it", device.host_free(host));
  place.let_go();
  CHECK(device.wait_for(ticket, 60s));
  device.host_free(host);
  CHECK_EQUAL(device.host_usage().used_bytes, 0U);
}

DEVICE_TEST(tickets_rise_in_each_direction_and_are_never_those_of_the_other) {
  Device& device = place.device();
  device.compute_on(0);
  std::byte* host = device.host_allocate(10);
  const Ticket first_out = device.copy_out(host, place.memory(), 10);
  CHECK(device.wait_for(first_out, 60s));
  const Ticket first_in = device.copy_in(place.memory(), host, 10);
  CHECK(device.wait_for(first_in, 60s));
  const Ticket second_out = device.copy_out(host, place.memory(), 10);
  CHECK(device.wait_for(second_out, 60s));
  CHECK(first_out < second_out && first_in != first_out && first_in != second_out);
  CHECK_FAULT(invariant, "was never queued", device.done(second_out + 2));
  CHECK_FAULT(invariant, "was never queued", device.wait_for(first_in + 2, 1ms));
}

DEVICE_TEST(a_copy_must_fit_a_live_buffer) {
  Device& device = place.device();
  std::byte* host = device.host_allocate(100);
  CHECK_FAULT(invariant, "a copy of 1000 bytes exceeds the host buffer of 128 bytes",
              device.copy_in(place.memory(), host, 1000));
  CHECK_FAULT(invariant, "a copy of 0 bytes", device.copy_in(place.memory(), host, 0));
  device.host_free(host);
  CHECK_FAULT(invariant, "is not, or is no longer, a buffer of the host pool",
              device.copy_out(host, place.memory(), 1));
  CHECK_FAULT(memory, "of its limit of 1048576 bytes are in use", device.host_allocate(host_pool_bytes + 1));
}

DEVICE_TEST(bytes_are_accounted_for_in_the_ledger) {
  Device& device = place.device();
  device.move(0, 70'000);
  device.move(50'000, 10'000);
  CHECK_EQUAL(device.usage().used_bytes, 30'000U);
  CHECK_EQUAL(device.usage().high_water_bytes, 70'000U);
  device.reset_high_water();
  CHECK_EQUAL(device.usage().high_water_bytes, 30'000U);
  CHECK_FAULT(memory, "exceeds the grant", device.move(0, place.ledger().usage().capacity_bytes));
  CHECK_EQUAL(place.ledger().usage().used_bytes, 30'000U);
}

DEVICE_TEST(a_closed_device_has_finished_its_copies_and_takes_no_more) {
  Device& device = place.device();
  std::byte* host = device.host_allocate(10'000);
  std::memset(place.bytes(), 0x5A, 10'000);
  device.copy_out(host, place.memory(), 10'000);
  device.close();
  CHECK(host[0] == std::byte{0x5A} && host[9'999] == std::byte{0x5A});
  CHECK_FAULT(invariant, "the device is closed, it copies nothing more", device.copy_in(place.memory(), host, 10));
  device.close();
}

TEST(every_device_refuses_an_ended_claim) {
  {
    Ledger ledger = Ledger::create({1 << 20, 4096, 1, 1});
    const Claim claim = ledger.claim_slot(1);
    ledger.release_slot(claim.slot);
    CHECK_FAULT(device, "epoch 1 is over", EmulatedDevice(Ledger::attach(ledger.fd()), claim, 0));
  }
  const cuda_scene::Checked checked;
  cuda_scene::Scene scene;
  scene.ledger.release_slot(scene.claim.slot);
  CHECK_FAULT(device, "epoch 1 is over", scene.device->move(0, 1));
  CHECK_FAULT(device, "epoch 1 is over",
              cuda::CudaDevice(cuda_scene::driver(), Ledger::attach(scene.ledger.fd()), scene.claim,
                               cuda_scene::mapped(scene.broker), 0));
}
