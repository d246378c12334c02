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

  // Give the memory of such a hook's arena back to the system if nothing is in it: it comes again when it is used.
  static void trim(const tensile_arena_hook& hook);

 private:
  HostPool pool_;
  tensile_arena_hook hook_;
};

}  // namespace tensile
