#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "check.hpp"
#include "emulated_device.hpp"

using namespace tensile;
using namespace std::chrono_literals;

namespace {

struct Scene {
  explicit Scene(std::uint64_t bytes_per_s) : ledger(Ledger::create({1 << 20, 4096, bytes_per_s, bytes_per_s})) {
    claim = ledger.claim_slot(1);
    ledger.grant(claim.slot, 1 << 16);
  }

  Ledger ledger;
  Claim claim{};
};

DeviceAddress address(std::vector<char>& memory) { return reinterpret_cast<DeviceAddress>(memory.data()); }

}  // namespace

TEST(a_tensor_goes_out_and_comes_back) {
  Scene scene(1'000'000'000'000);
  EmulatedDevice device(Ledger::attach(scene.ledger.fd()), scene.claim, 1 << 20, 1000);
  std::vector<char> tensor(12'345, 'x');
  device.move(0, tensor.size());
  std::byte* host = device.host_allocate(tensor.size());
  const Ticket out = device.copy_out(host, address(tensor), tensor.size());
  CHECK(device.wait_for(out, 60s));
  CHECK(device.done(out));
  tensor.assign(tensor.size(), 'y');
  const Ticket in = device.copy_in(address(tensor), host, tensor.size());
  CHECK(out != in);
  CHECK(device.drain_for(60s));
  CHECK(tensor == std::vector<char>(12'345, 'x'));
  device.host_free(host);
  CHECK_EQUAL(device.usage().used_bytes, 12'345U);
  CHECK_EQUAL(device.host_usage().used_bytes, 0U);
  CHECK_EQUAL(scene.ledger.words().out.reserved_bytes.load(), 12'345U);
  CHECK_EQUAL(scene.ledger.words().in.reserved_bytes.load(), 12'345U);
}

TEST(a_host_buffer_in_use_by_a_copy_cannot_be_freed) {
  Scene scene(10'000'000);
  EmulatedDevice device(Ledger::attach(scene.ledger.fd()), scene.claim, 1 << 20, 1000);
  std::vector<char> tensor(100'000, 'x');
  std::byte* host = device.host_allocate(tensor.size());
  const Ticket ticket = device.copy_out(host, address(tensor), tensor.size());
  CHECK_FAULT(invariant, "is freed while a copy still uses it", device.host_free(host));
  CHECK(device.wait_for(ticket, 60s));
  device.host_free(host);
  CHECK_FAULT(invariant, "is no buffer of the host pool", device.copy_out(host, address(tensor), 1));
}

TEST(a_copy_must_fit_its_host_buffer) {
  Scene scene(1'000'000'000'000);
  EmulatedDevice device(Ledger::attach(scene.ledger.fd()), scene.claim, 1 << 20);
  std::vector<char> tensor(1000, 'x');
  std::byte* host = device.host_allocate(100);
  CHECK_FAULT(invariant, "a copy of 1000 bytes and a host buffer of 128",
              device.copy_in(address(tensor), host, tensor.size()));
  CHECK_FAULT(invariant, "was never queued", device.done(2));
  device.close();
  CHECK_FAULT(invariant, "the device is closed", device.copy_in(address(tensor), host, 10));
}

TEST(a_device_of_a_claim_that_is_over_is_refused) {
  Scene scene(1);
  scene.ledger.release_slot(scene.claim.slot);
  CHECK_FAULT(device, "epoch 1 is over", EmulatedDevice(Ledger::attach(scene.ledger.fd()), scene.claim, 0));
}
