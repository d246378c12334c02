// The common setup of the tests of the GPU back end: the fake driver, a broker's regions, a job's claim.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "check.hpp"
#include "cuda/cuda_device.hpp"
#include "cuda/region_map.hpp"
#include "descriptors.hpp"
#include "fake_cuda.hpp"
#include "fault.hpp"
#include "ledger.hpp"

namespace cuda_scene {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t region_bytes = 2 * mib;

// The driver of the whole test run, loaded once.
inline const tensile::cuda::Driver& driver() { return tensile::cuda::required_driver(); }

struct Sockets {
  Sockets() {
    std::array<int, 2> numbers{};
    CHECK_EQUAL(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, numbers.data()), 0);
    broker = tensile::FileDescriptor(numbers[0]);
    trainer = tensile::FileDescriptor(numbers[1]);
  }

  tensile::FileDescriptor broker;
  tensile::FileDescriptor trainer;
};

// Map all of a broker's regions within one thread: the answers that the broker waits for are sent in advance.
inline tensile::cuda::RegionMap mapped(const tensile::cuda::RegionBroker& broker) {
  const Sockets sockets;
  const std::array<std::byte, 8> answers{};
  tensile::send_bytes(sockets.trainer.number(), answers);
  broker.send(sockets.broker.number());
  return tensile::cuda::RegionMap::receive(driver(), broker.shape().device, sockets.trainer.number());
}

// A device of 8 regions and one job that may use all of them.
struct Scene {
  explicit Scene(std::uint64_t host_pool_bytes = mib, std::size_t chunk_bytes = 100'000)
      : ledger(tensile::Ledger::create({8 * region_bytes, region_bytes, 1, 1})),
        claim(ledger.claim_slot(1)),
        broker(driver(), {0, region_bytes, 8}) {
    ledger.grant(claim.slot, 8 * region_bytes);
    device = std::make_unique<tensile::cuda::CudaDevice>(driver(), tensile::Ledger::attach(ledger.fd()), claim,
                                                         mapped(broker), host_pool_bytes, chunk_bytes);
  }

  tensile::Ledger ledger;
  tensile::Claim claim;
  tensile::cuda::RegionBroker broker;
  std::unique_ptr<tensile::cuda::CudaDevice> device;
};

// Resets the fake driver at both ends of a test, and fails the test if it broke a rule of the API or leaked a
// resource.
struct Checked {
  explicit Checked(unsigned int seed = 1) {
    driver();  // load the driver before a test makes a call fail
    fake_cuda::reset(seed);
  }
  ~Checked() {
    fake_cuda::settle();
    CHECK_EQUAL(fake_cuda::violations(), std::string());
    CHECK_EQUAL(fake_cuda::live(), std::string());
    fake_cuda::reset();
  }
  Checked(const Checked&) = delete;
  Checked& operator=(const Checked&) = delete;
};

}  // namespace cuda_scene
