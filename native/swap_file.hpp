// The far side of the links of a device in this machine's own memory: a file on disk, so that what is swapped out takes
// no memory at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "free_ranges.hpp"
#include "shared_memory.hpp"

namespace tensile {

// A file that has no name from its first instant on: it is gone with the last process that has it open, however that
// ends.
//
// Bytes pass the page cache by (O_DIRECT) where the file system lets them, and otherwise leave it as soon as they are
// on disk: the cache would hold what was swapped out in the memory that swapping is to save, and a control group counts
// it. So reads and writes go at the disk's own rate, which is the rate that plans count on.
//
// Offsets and the ends of ranges are multiples of `block_bytes`, except that a size may end within a block, the rest of
// which then holds nothing. Any thread may call, each with a buffer of its own.
class SwapFile {
 public:
  static constexpr std::uint64_t block_bytes = 4096;  // what any disk takes: they have blocks of 512 or 4,096 bytes

  // Memory of one thread's through which its bytes pass: O_DIRECT wants aligned addresses.
  class Buffer {
   public:
    Buffer();
    std::byte* bytes() noexcept { return memory_.address(); }
    std::size_t size_bytes() const noexcept { return memory_.size_bytes(); }

   private:
    Mapping memory_;
  };

  // Raises a device fault where there can be no such file in the directory.
  explicit SwapFile(std::string directory);

  // Have room on the disk for these bytes. Raises a `lost` fault where it is full, or nearly so: a database may be on
  // the same disk, and ends when that is full.
  void reserve(Range range);

  // Give the room back to the disk.
  void give_back(Range range);

  // Both raise a `lost` fault for whatever the disk refuses.
  void write(std::uint64_t offset, const std::byte* from, std::size_t size_bytes, Buffer& buffer);
  void read(std::uint64_t offset, std::byte* to, std::size_t size_bytes, Buffer& buffer);

  bool is_direct() const noexcept { return direct_; }

 private:
  void flush(Range range);
  [[noreturn]] void throw_lost(const std::string& purpose, int error_number) const;

  std::string directory_;
  FileDescriptor fd_;
  bool direct_ = false;
};

}  // namespace tensile
