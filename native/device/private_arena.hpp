// An arena that belongs to this process alone, for use without a device, such as while operators are calibrated.
#pragma once

#include <cstdint>

#include "arena_hook.h"
#include "host_pool.hpp"

namespace tensile {

class PrivateArena {
 public:
  explicit PrivateArena(std::uint64_t limit_bytes);
  PrivateArena(const PrivateArena&) = delete;
  PrivateArena& operator=(const PrivateArena&) = delete;

  const tensile_arena_hook* hook() const noexcept { return &hook_; }

  // Give the memory of the arena behind this hook back to the system if it holds no allocation. The arena gets memory
  // again when it is used. The hook must belong to a PrivateArena.
  static void trim(const tensile_arena_hook& hook);

 private:
  HostPool pool_;
  tensile_arena_hook hook_;
};

}  // namespace tensile
