// What a window (window.hpp) is made of: memory of an arena that a back end shows a second time, at other addresses.
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

  // A range of addresses as long as the arena's; memory is behind what was added.
  virtual std::uintptr_t begin() const noexcept = 0;
  virtual std::uint64_t size_bytes() const noexcept = 0;

  // Every piece has this length, but the last, which is some of these units long.
  virtual std::uint64_t piece_bytes() const noexcept = 0;
  virtual std::uint64_t unit_bytes() const noexcept = 0;

  // Take so much of the arena, whole regions of it where there are any, and show it at an offset; null where there is
  // no room. Returns what `remove` needs.
  virtual void* add(std::uint64_t offset, std::uint64_t size_bytes) = 0;

  // Whether this lies across the borders of regions, which others could have but for it.
  virtual bool is_scattered(const void* /*taken*/) const noexcept { return false; }

  // Nothing is behind these addresses any more, and the arena has its memory back.
  virtual void remove(void* taken, std::uint64_t offset, std::uint64_t size_bytes) = 0;
};

// Pages of shared memory of this process, moved about by the system: an emulated device's.
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
