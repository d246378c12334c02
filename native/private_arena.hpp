// An arena of this process alone: where there is no device yet, as while operators are calibrated.
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

 private:
  HostPool pool_;
  tensile_arena_hook hook_;
};

}  // namespace tensile
