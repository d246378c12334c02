// One range of addresses over pieces of an arena that may lie anywhere in it.
//
// Regions come and go between jobs, so what a job has is rarely in one piece; a plan's offsets are. The pieces are
// mapped a second time, one behind the other: system calls where plans change, none while they are followed. Why a job
// has a range of its own, and not its part of one for all: scheduler/admission/regions.py.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pieces.hpp"

namespace tensile {

class Window {
 public:
  explicit Window(std::unique_ptr<Pieces> memory) : memory_(std::move(memory)) {}
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Have memory from the start of the window on, at least this much. False where the arena has no room for it: then
  // there is what there was, up to what `kept` says. Who gathers takes anew what lies across regions because others
  // were not empty then: they may be now, and what is left of a job's block must leave whole regions to others.
  bool resize(std::uint64_t size_bytes, bool gathers = false);

  // How much from the start keeps its memory and its bytes in a `resize`.
  std::uint64_t kept(std::uint64_t size_bytes, bool gathers = false) const;

  std::uintptr_t begin() const noexcept { return memory_->begin(); }
  std::uintptr_t end() const noexcept { return begin() + memory_->size_bytes(); }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  struct Piece {
    void* taken;  // what the arena gave
    std::uint64_t size_bytes;
  };

  std::uint64_t gathered_bytes() const;
  bool push(std::uint64_t size_bytes);
  void pop();

  const std::unique_ptr<Pieces> memory_;
  std::vector<Piece> pieces_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace tensile
