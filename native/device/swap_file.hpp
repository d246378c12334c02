// The swap file of the CPU device. Tensors are swapped out to a file on disk, where they take no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "free_ranges.hpp"
#include "shared_memory.hpp"

namespace tensile {

// A file without a name. It disappears with the last process that has it open, however that process ends.
//
// Transfers bypass the page cache (O_DIRECT) if the file system allows it, and otherwise leave the cache as soon as
// they are on disk. The cache would keep swapped bytes in the memory that swapping is meant to save, and a control
// group counts that memory. So reads and writes run at the rate of the disk, which is the rate that plans assume.
//
// Offsets and the ends of ranges are multiples of `block_bytes`. The size of a read or a write may end within a
// block; the rest of the block is then undefined. Any thread may call, each with its own buffer.
class SwapFile {
 public:
  static constexpr std::uint64_t block_bytes = 4096;  // suits every disk: their blocks have 512 or 4,096 bytes

  // The memory through which one thread transfers its bytes: O_DIRECT requires aligned addresses.
  class Buffer {
   public:
    Buffer();
    std::byte* bytes() noexcept { return memory_.address(); }
    std::size_t size_bytes() const noexcept { return memory_.size_bytes(); }

   private:
    Mapping memory_;
  };

  // Raises a device fault if no such file can be created in the directory.
  explicit SwapFile(std::string directory);

  // Reserve space on the disk for these bytes. Raises a `lost` fault if the disk is full or nearly full: a database
  // may be on the same disk, and a full disk would stop it.
  void reserve(Range range);

  // Give the disk space back.
  void give_back(Range range);

  // Both raise a `lost` fault if the disk reports an error.
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
