// Owners of file descriptors and memory mappings, and the system calls on memory that ledgers and host pools use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "forks.hpp"
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

// Owns one mapping of this process. A copy in a forked child leaves the addresses alone: the child may not have the
// mapping, and may have mapped something else there.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, std::size_t size_bytes) noexcept
      : address_(static_cast<std::byte*>(address)), size_bytes_(size_bytes), forks_(forks()) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)),
        forks_(other.forks_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(forks_, other.forks_);
    return *this;
  }

  std::byte* address() const noexcept { return address_; }
  std::size_t size_bytes() const noexcept { return size_bytes_; }

  // Give up ownership; the mapping stays in place.
  void abandon() noexcept { address_ = nullptr; }

 private:
  std::byte* address_ = nullptr;
  std::size_t size_bytes_ = 0;
  unsigned forks_ = 0;  // when it was mapped
};

// Nameless memory that processes share by passing a file descriptor, together with this process's mapping of its
// start.
class SharedMemory {
 public:
  // If `directory` is empty, create the system's own nameless file (memfd). Its size is sealed, so no process that
  // has the descriptor can make another process's access fail. Otherwise create a nameless file in that directory,
  // such as /dev/shm, whose size bounds it. Memory for the first `mapped_bytes` is set aside and mapped; the rest
  // needs `reserve`.
  static SharedMemory create(const char* name, const std::string& directory, std::uint64_t size_bytes,
                             std::size_t mapped_bytes);

  // Duplicates `fd`, which the caller keeps. Raises a device fault if the file is smaller than `mapped_bytes`.
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

// Map these bytes of a file. A forked child does not get the mapping.
Mapping map_unforked(int fd, Range range);

// Have the system set memory aside for these bytes of a shared file, so that touching them cannot fail. If the file
// system or the machine is full, raises a `lost` fault; touching the bytes would end the process by a signal.
void reserve(int fd, Range range);

// Give the memory of these bytes of a shared file back to the system; they read as zeros in every process.
void punch(int fd, Range range);

// Reserve address space without memory; `populate` gives it memory. If it is not `usable`, touching it ends the
// process, because its addresses only stand for something else. A range with room for huge pages is aligned to one.
// Forked children do not inherit the range.
Mapping reserve_address_space(std::size_t size_bytes, bool usable = true);

// Keep whole pages of a private range from forked children. Otherwise copy-on-write after a fork could move this
// process to new pages while the device still writes to the old ones.
void keep_from_children(std::byte* address, std::size_t size_bytes);

// Ask for huge pages in a range, before it is populated. A system without huge pages uses small ones.
void prefer_huge_pages(std::byte* address, std::size_t size_bytes);

// Fault in the pages of a private range now, so that no later access faults. Raises a memory fault if the system has
// no memory left.
void populate(std::byte* address, std::size_t size_bytes);

// Give whole pages of a private range back to the system.
void discard(std::byte* address, std::size_t size_bytes);

}  // namespace tensile
