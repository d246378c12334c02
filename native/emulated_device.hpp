// Emulates a GPU on a machine without one. Two threads act as copy engines and copy no faster than the emulated
// links; the host side of the links is memory of the process itself.
#pragma once

#include <cstring>
#include <optional>

#include "machine_device.hpp"

namespace tensile {

class EmulatedDevice final : public MachineDevice {
 public:
  EmulatedDevice(Ledger ledger, const Claim& claim, std::uint64_t host_pool_bytes,
                 std::optional<std::size_t> chunk_bytes = std::nullopt, const ArenaShape& arena = {})
      : MachineDevice(std::move(ledger), claim, host_pool_bytes, arena, in_memory(chunk_bytes)) {}

 private:
  static FarSide in_memory(std::optional<std::size_t> chunk_bytes) {
    const auto copy = [](std::byte* to, const std::byte* from, std::size_t size_bytes) {
      std::memcpy(to, from, size_bytes);
    };
    return {{}, {copy, Lane::Pace::link, chunk_bytes}, {copy, Lane::Pace::link, chunk_bytes}};
  }
};

}  // namespace tensile
