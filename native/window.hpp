// One range of addresses over pieces of an arena that may lie anywhere in it.
//
// Regions come and go between jobs, so what a job has is rarely in one piece; a plan's offsets are. The pieces are
// mapped a second time, one behind the other: system calls where plans change, none while they are followed.
#pragma once

#include <cstdint>
#include <vector>

#include "arena_hook.h"
#include "shared_memory.hpp"

namespace tensile {

class Window {
 public:
  // Address space as long as the arena's, which has to be shared memory.
  explicit Window(const tensile_arena_hook& arena);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Have memory from the start of the window on, at least this much. False where the arena has no room for it: then
  // there is what there was, up to what `kept` says.
  bool resize(std::uint64_t size_bytes);

  // How much from the start keeps its memory and its bytes in a `resize`.
  std::uint64_t kept(std::uint64_t size_bytes) const;

  std::uintptr_t begin() const noexcept { return reinterpret_cast<std::uintptr_t>(range_.address()); }
  std::uintptr_t end() const noexcept { return begin() + range_.size_bytes(); }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  struct Piece {
    void* taken;  // what the arena gave
    std::uint64_t size_bytes;
  };

  bool push(std::uint64_t size_bytes);
  void pop();
  void* take(std::uint64_t size_bytes, std::byte** pages) const;

  const tensile_arena_hook arena_;
  Mapping range_;
  std::vector<Piece> pieces_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace tensile
