// The functions that torch's CUDAPluggableAllocator calls, so that torch's tensors use the memory of this process's
// device.
//
// torch looks up the first three functions by name in this library (torch/csrc/cuda/CUDAPluggableAllocator.cpp),
// before it uses CUDA. Memory is ordered by streams as in torch's own allocator: freed memory may be used again by
// the stream that it was allocated for, and by other streams after that stream's work. `tensile_cuda_record_stream`
// announces other streams that use a tensor; torch's record_stream has no effect unless that function was given to
// the allocator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "arena_hook.h"
#include "cuda/cuda_device.hpp"

extern "C" {

// Without room it throws c10::OutOfMemoryError, which torch's callers of cuDNN catch to try another algorithm. In a
// process without torch it throws a memory fault, which becomes a RuntimeError. It never returns null for lack of
// memory, because torch does not check for null.
void* tensile_cuda_allocate(std::size_t size, int device, CUstream_st* stream);
void tensile_cuda_free(void* address, std::size_t size, int device, CUstream_st* stream);
void tensile_cuda_record_stream(void* address, CUstream_st* stream);

// Allocate from this hook (script.hpp) instead of the device's arena from now on; null selects the arena again.
int tensile_cuda_serve(const tensile_arena_hook* hook);
}

namespace tensile::cuda {

// Choose whether this thread's allocations come from memory outside the regions from now on. That memory is for
// tensors that outlive every plan.
void allocate_beside(bool wanted);

// Raise the last fault given to torch once more, if `words` (the text of torch's error) contain its message.
void raise_told(std::string_view words);

// The requests for which the job's regions had no room, even if memory outside the regions served them.
struct Refusal {
  std::uint64_t needed_bytes = 0;     // the most that the regions would have had to hold for one of the requests
  std::uint64_t grantable_bytes = 0;  // the same over those requests that the whole device could hold
};

// Return the requests since the last call of this function.
Refusal take_refusal();

// Serve torch from this device, which should outlive all allocations; null ends that.
void serve_torch(CudaDevice* device);

}  // namespace tensile::cuda
