// A contiguous range of addresses over pieces of an arena that may lie anywhere in the arena.
//
// Regions move between jobs, so a job's regions are rarely contiguous, while a plan's offsets are. The pieces are
// mapped a second time, one behind the other. That takes system calls when plans change, and none while a plan is
// followed. scheduler/admission/region_fit.py explains why each job has a range of its own instead of a part of a
// common one.
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

  // Resize the window to at least this many bytes of memory. False if the arena has no room; the window then still
  // has at least its first `kept` bytes. With `gathers`, the window also replaces pieces that lie across the borders
  // of regions. They were placed there when no whole region was empty; by now whole regions may be, and a job's block
  // must leave whole regions to other jobs.
  bool resize(std::uint64_t size_bytes, bool gathers = false);

  // Return how many bytes from the start keep their memory and their contents in a `resize`.
  std::uint64_t kept(std::uint64_t size_bytes, bool gathers = false) const;

  std::uintptr_t begin() const noexcept { return memory_->begin(); }
  std::uintptr_t end() const noexcept { return begin() + memory_->size_bytes(); }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  struct Piece {
    void* taken;  // the arena's allocation
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
