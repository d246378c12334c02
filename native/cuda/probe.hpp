// Lists the driver's GPUs with the properties that this package uses.
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
  int copy_engines;  // with 2 or more, copies in both directions can run at once
  bool virtual_memory;
  bool shareable;                   // whether regions can be passed to other processes
  std::uint64_t granularity_bytes;  // the size of a region must be a multiple of this; 0 without virtual memory
};

// Return all GPUs that this process may use, by ordinal. Raises a fault if a driver call fails.
std::vector<DeviceFacts> probe(const Driver& driver);

}  // namespace tensile::cuda
