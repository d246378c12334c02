// Kernels of the fake driver that the tests of copies and of memory launch, and the bytes that they compare.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "cuda_scene.hpp"

namespace cuda_scene {

// Launch a kernel that fills memory with a value.
inline void compute(tensile::DeviceAddress address, std::size_t size_bytes, std::byte value,
                    tensile::StreamHandle stream = 0) {
  fake_cuda::launch(reinterpret_cast<tensile::cuda::StreamPointer>(stream), {{address, size_bytes, true}},
                    [=] { std::memset(reinterpret_cast<void*>(address), static_cast<int>(value), size_bytes); });
}

// Launch a kernel that reads memory into `seen` when it runs.
inline void read(tensile::DeviceAddress address, std::size_t size_bytes, std::vector<std::byte>& seen) {
  fake_cuda::launch(nullptr, {{address, size_bytes, false}}, [=, &seen] {
    const auto* memory = reinterpret_cast<const std::byte*>(address);
    seen.assign(memory, memory + size_bytes);
  });
}

inline std::vector<std::byte> filled(std::size_t size_bytes, int value) {
  return std::vector<std::byte>(size_bytes, static_cast<std::byte>(value));
}

}  // namespace cuda_scene
