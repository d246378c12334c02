// The pieces of a window (window.hpp): memory of an arena that a back end maps a second time, at other addresses.
#pragma once

#include <cstdint>

#include "arena_hook.h"
#include "shared_memory.hpp"

namespace tensile {

class Pieces {
 public:
  Pieces() = default;
  virtual ~Pieces() = default;
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  // The window's range of addresses, as long as the arena's. Only the parts given to `add` have memory.
  virtual std::uintptr_t begin() const noexcept = 0;
  virtual std::uint64_t size_bytes() const noexcept = 0;

  // The length of every piece except the last, whose length is a multiple of `unit_bytes`.
  virtual std::uint64_t piece_bytes() const noexcept = 0;
  virtual std::uint64_t unit_bytes() const noexcept = 0;

  // Take this much memory of the arena, whole regions if possible, and map it at an offset of the window. Returns the
  // allocation, which `remove` needs; null if the arena has no room.
  virtual void* add(std::uint64_t offset, std::uint64_t size_bytes) = 0;

  // True if the piece does not start at a region's border, so that it occupies regions only in part.
  virtual bool is_scattered(const void* /*taken*/) const noexcept { return false; }

  // Unmap a piece from the window and give its memory back to the arena.
  virtual void remove(void* taken, std::uint64_t offset, std::uint64_t size_bytes) = 0;
};

// Pieces of an emulated device: pages of shared memory, which the system can map a second time.
class PagePieces final : public Pieces {
 public:
  explicit PagePieces(const tensile_arena_hook& arena);

  std::uintptr_t begin() const noexcept override { return reinterpret_cast<std::uintptr_t>(range_.address()); }
  std::uint64_t size_bytes() const noexcept override { return range_.size_bytes(); }
  std::uint64_t piece_bytes() const noexcept override { return piece_bytes_; }
  std::uint64_t unit_bytes() const noexcept override { return page_bytes(); }
  void* add(std::uint64_t offset, std::uint64_t size_bytes) override;
  bool is_scattered(const void* taken) const noexcept override;
  void remove(void* taken, std::uint64_t offset, std::uint64_t size_bytes) override;

 private:
  void* take(std::uint64_t size_bytes, std::byte** pages) const;

  const tensile_arena_hook arena_;
  const std::uint64_t piece_bytes_;
  Mapping range_;
};

}  // namespace tensile
