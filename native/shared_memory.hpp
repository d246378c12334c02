// File descriptors and mappings, owned: what a ledger and a host pool are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "free_ranges.hpp"

namespace tensile {

// Owns one file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) noexcept : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }

  int number() const noexcept { return number_; }

 private:
  int number_ = -1;
};

// Owns one mapping of this process.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, std::size_t size_bytes) noexcept
      : address_(static_cast<std::byte*>(address)), size_bytes_(size_bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }

  std::byte* address() const noexcept { return address_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }

  // Leave the mapping as it is.
  void abandon() noexcept { address_ = nullptr; }

 private:
  std::byte* address_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Memory without a name that processes share by handing on a file descriptor, and the start of it as this process
// maps it.
class SharedMemory {
 public:
  // The system's own nameless file where `directory` is empty: its size is sealed, so nobody who holds the
  // descriptor can make another process's access fail. Else a file in that directory (such as /dev/shm, whose size
  // bounds it) that has no name either. The first `mapped_bytes` are set aside and mapped, the rest waits for
  // `reserve`.
  static SharedMemory create(const char* name, const std::string& directory, std::uint64_t size_bytes,
                             std::size_t mapped_bytes);

  // Duplicates `fd`, which stays the caller's; a file smaller than `mapped_bytes` is refused.
  static SharedMemory attach(int fd, std::size_t mapped_bytes);

  int fd() const noexcept { return fd_.number(); }
  std::byte* address() const noexcept { return mapping_.address(); }

 private:
  SharedMemory(FileDescriptor fd, Mapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}

  FileDescriptor fd_;
  Mapping mapping_;
};

std::uint64_t page_bytes();

constexpr std::uint64_t rounded_up(std::uint64_t size_bytes, std::uint64_t unit_bytes) {
  return (size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}

// Map these bytes of a file; a forked child does not get the mapping.
Mapping map_unforked(int fd, Range range);

// Have the system set memory aside for these bytes of a shared file, so that touching them cannot fail. Raises a
// memory fault, instead of the signal that touching them would be, where the file system or the machine is full.
void reserve(int fd, Range range);

// Give the memory of these bytes of a shared file back to the system: they read as zeros in every process.
void punch(int fd, Range range);

// Address space without memory behind it; `populate` gives it memory. Where it is not `usable`, touching it ends the
// process: its addresses stand for something else. A range that has room for huge pages begins where one may.
Mapping reserve_address_space(std::size_t size_bytes, bool usable = true);

// Whole pages of a private range that no forked child gets: what the device writes there is not to go to a copy.
void keep_from_children(std::byte* address, std::size_t size_bytes);

// Ask for huge pages where the range has whole ones, before it is populated: a system that has none gives small ones.
void prefer_huge_pages(std::byte* address, std::size_t size_bytes);

// Fault the pages of a private range in now, so that no later access has to. Raises a memory fault when the
// system has none left.
void populate(std::byte* address, std::size_t size_bytes);

// Give whole pages of a private range back to the system.
void discard(std::byte* address, std::size_t size_bytes);

}  // namespace tensile
