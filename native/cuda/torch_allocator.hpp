// What torch's CUDAPluggableAllocator calls: its tensors' memory comes from this process's device.
//
// The three functions are found by name in this library (torch/csrc/cuda/CUDAPluggableAllocator.cpp), before torch
// uses CUDA. Memory is ordered by streams as torch's own allocator orders it: what is freed may be taken anew by the
// stream that it was allocated for, and by any other after that; `tensile_cuda_record_stream` names others that use
// it. torch's record_stream says nothing unless that function was given to the allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "arena_hook.h"
#include "cuda/cuda_device.hpp"

extern "C" {

// Where there is no room c10::OutOfMemoryError, which torch's callers of cuDNN catch to try another algorithm, or a
// memory fault, which torch shows as a RuntimeError, in a process without torch: torch does not look for null.
void* tensile_cuda_allocate(std::size_t size, int device, CUstream_st* stream);
void tensile_cuda_free(void* address, std::size_t size, int device, CUstream_st* stream);
void tensile_cuda_record_stream(void* address, CUstream_st* stream);

// From now on allocate from this hook instead of the device's arena (script.hpp), or from the arena again: null.
int tensile_cuda_serve(const tensile_arena_hook* hook);
}

namespace tensile::cuda {

// From now on this thread's allocations come from beside the regions, for what outlives every plan; or no longer.
void allocate_beside(bool wanted);

// Raise once more what torch was told last, where these are its words for it.
void raise_told(std::string_view words);

// What the job's regions had no room for, whoever gave it then: what they would have to hold with it, the most of all
// such requests. `grantable_bytes` is the most of those that the whole device could hold.
struct Refusal {
  std::uint64_t needed_bytes = 0;
  std::uint64_t grantable_bytes = 0;
};

// Since this was last asked.
Refusal take_refusal();

// Serve torch from this device, which should outlive what is allocated; or from none: null.
void serve_torch(CudaDevice* device);

}  // namespace tensile::cuda
