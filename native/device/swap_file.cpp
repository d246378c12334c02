#include "swap_file.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "fault.hpp"

namespace tensile {
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;  // transfers of about this size reach the disk's full rate
constexpr std::uint64_t most_spare_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t spare_part = 20;  // 1/20 of the disk, but at most the above, is left to other users

template <typename Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

FileDescriptor open_nameless(const std::string& directory, int flags) {
  FileDescriptor fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL | flags, 0600));
  if (fd.number() >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) return fd;
  // The file system does not support nameless files: create a named file and unlink it at once.
  std::string name = directory + "/tensile-swap-XXXXXX";
  FileDescriptor named(::mkostemp(name.data(), O_CLOEXEC | flags));
  if (named.number() >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

SwapFile::Buffer::Buffer() : memory_(reserve_address_space(buffer_bytes)) {}

SwapFile::SwapFile(std::string directory)
    : directory_(std::move(directory)), fd_(open_nameless(directory_, O_DIRECT)), direct_(fd_.number() >= 0) {
  if (!direct_) fd_ = open_nameless(directory_, 0);
  if (fd_.number() < 0) {
    throw Fault(Fault::Kind::device,
                text("no swap file can be made in swap_directory '", directory_,
                     "': ", std::generic_category().message(errno)),
                "Name a directory on a disk that this user may write to: TENSILE_SWAP_DIRECTORY.");
  }
}

void SwapFile::reserve(Range range) {
  struct statvfs disk {};
  if (::fstatvfs(fd_.number(), &disk) == 0 && disk.f_blocks != 0) {
    const std::uint64_t unit_bytes = disk.f_frsize;
    const std::uint64_t left_bytes = disk.f_bavail * unit_bytes;
    const std::uint64_t spare_bytes = std::min(disk.f_blocks * unit_bytes / spare_part, most_spare_bytes);
    if (left_bytes < range.size_bytes + spare_bytes) {
      throw_lost(text("room for ", range.size_bytes, " more bytes"), ENOSPC);
    }
  }
  const int status = uninterrupted([&] {
    return ::fallocate(fd_.number(), 0, static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes));
  });
  // If the file system cannot reserve space, a later write reports that the disk is full.
  if (status != 0 && errno != EOPNOTSUPP) throw_lost(text("room for ", range.size_bytes, " more bytes"), errno);
}

void SwapFile::give_back(Range range) {
  const int status = uninterrupted([&] {
    return ::fallocate(fd_.number(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
                       static_cast<off_t>(range.size_bytes));
  });
  if (status != 0 && errno != EOPNOTSUPP) throw_lost(text("giving back ", range.size_bytes, " bytes"), errno);
}

void SwapFile::write(std::uint64_t offset, const std::byte* from, std::size_t size_bytes, Buffer& buffer) {
  for (std::size_t done = 0; done < size_bytes; done += buffer.size_bytes()) {
    const std::size_t part_bytes = std::min(buffer.size_bytes(), size_bytes - done);
    std::memcpy(buffer.bytes(), from + done, part_bytes);
    const std::size_t whole_bytes = rounded_up(part_bytes, block_bytes);
    for (std::size_t written = 0; written < whole_bytes;) {
      const ssize_t count = uninterrupted([&] {
        return ::pwrite(fd_.number(), buffer.bytes() + written, whole_bytes - written,
                        static_cast<off_t>(offset + done + written));
      });
      if (count <= 0) throw_lost(text("writing ", part_bytes, " bytes"), count == 0 ? ENOSPC : errno);
      written += static_cast<std::size_t>(count);
    }
  }
  if (!direct_) flush({offset, rounded_up(size_bytes, block_bytes)});
}

void SwapFile::read(std::uint64_t offset, std::byte* to, std::size_t size_bytes, Buffer& buffer) {
  for (std::size_t done = 0; done < size_bytes; done += buffer.size_bytes()) {
    const std::size_t part_bytes = std::min(buffer.size_bytes(), size_bytes - done);
    const std::size_t whole_bytes = rounded_up(part_bytes, block_bytes);
    std::size_t got = 0;
    while (got < part_bytes) {
      const ssize_t count = uninterrupted([&] {
        return ::pread(fd_.number(), buffer.bytes() + got, whole_bytes - got,
                       static_cast<off_t>(offset + done + got));
      });
      if (count < 0) throw_lost(text("reading ", part_bytes, " bytes"), errno);
      if (count == 0) break;
      got += static_cast<std::size_t>(count);
    }
    if (got < part_bytes) std::memset(buffer.bytes() + got, 0, part_bytes - got);  // space that was never written
    std::memcpy(to + done, buffer.bytes(), part_bytes);
  }
  if (!direct_)
    ::posix_fadvise(fd_.number(), static_cast<off_t>(offset), static_cast<off_t>(size_bytes), POSIX_FADV_DONTNEED);
}

// Write a range to the disk, then drop it from the page cache, which can only drop pages that are on the disk.
void SwapFile::flush(Range range) {
  const auto offset = static_cast<off_t>(range.offset);
  const auto size = static_cast<off_t>(range.size_bytes);
  const int status = uninterrupted([&] {
    return ::sync_file_range(fd_.number(), offset, size,
                             SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  });
  if (status != 0 && errno != EINVAL && errno != ENOSYS && errno != ESPIPE) {
    throw_lost(text("writing ", range.size_bytes, " bytes"), errno);
  }
  ::posix_fadvise(fd_.number(), offset, size, POSIX_FADV_DONTNEED);
}

void SwapFile::throw_lost(const std::string& purpose, int error_number) const {
  throw Fault(
      Fault::Kind::lost,
      text("the swap file in swap_directory '", directory_, "': ", purpose, ": ",
           std::generic_category().message(error_number)),
      "Free space on that disk or name another (TENSILE_SWAP_DIRECTORY), or give the device a larger budget, so "
      "that less is swapped. A twentieth of the disk, at most 1 GB, stays free.");
}

}  // namespace tensile
