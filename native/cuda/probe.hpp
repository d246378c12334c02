// What GPUs the driver has, and what of them matters here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver.hpp"

namespace tensile::cuda {

struct DeviceFacts {
  int ordinal;
  std::string name;
  std::string uuid;  // as nvidia-smi and NVML write it
  std::uint64_t memory_bytes;
  int capability_major;
  int capability_minor;
  int multiprocessors;
  int clock_khz;
  int memory_clock_khz;
  int memory_bus_bits;
  int copy_engines;  // 2 or more: copies in both directions at once
  bool virtual_memory;
  bool shareable;                   // regions can be handed to other processes
  std::uint64_t granularity_bytes;  // regions are a multiple of it; 0 without virtual memory
};

// All that this process may use, by ordinal. Raises a fault where the driver refuses an answer.
std::vector<DeviceFacts> probe(const Driver& driver);

}  // namespace tensile::cuda
