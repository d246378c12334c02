#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>

#include "fault.hpp"

namespace tensile {
namespace {

// The size of a huge page on x86-64, and on 64-bit Arm with pages of 4 kB.
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// The memory that must remain available: with less, the system kills processes instead of refusing memory.
constexpr std::uint64_t spare_bytes = std::uint64_t{64} << 20;

Mapping map_shared(int fd, Range range) {
  void* address =
      ::mmap(nullptr, range.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(range.offset));
  if (address == MAP_FAILED) {
    throw_system_fault("mmap", text("mapping ", range.size_bytes, " bytes of descriptor ", fd), errno);
  }
  return {address, range.size_bytes};
}

FileDescriptor nameless(const char* name) {
  FileDescriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.number() < 0) throw_system_fault("memfd_create", text("creating shared memory '", name, "'"), errno);
  return fd;
}

FileDescriptor nameless_in(const std::string& directory) {
  FileDescriptor fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600));
  if (fd.number() < 0) {
    throw Fault(Fault::Kind::device,
                text("the device's memory cannot be made in memory_directory '", directory,
                     "': ", std::generic_category().message(errno)),
                "Name a directory in memory that this user may write to, such as /dev/shm, or leave it empty.");
  }
  return fd;
}

// Return the memory that the system can give out without swapping; unlimited if /proc/meminfo does not say.
std::uint64_t available_bytes() {
  std::ifstream lines("/proc/meminfo");
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return std::strtoull(line.c_str() + 13, nullptr, 10) << 10;
  }
  return UINT64_MAX;
}

// Raise a `lost` fault: memory that was granted does not exist, which is not the job's fault.
[[noreturn]] void throw_no_memory(std::uint64_t size_bytes, const std::string& why) {
  throw Fault(Fault::Kind::lost,
              text("the system has no memory for ", size_bytes, " more bytes of the device: ", why),
              "Lower the device's capacity or the number of jobs, or give the machine (or /dev/shm) more memory.");
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

Mapping::~Mapping() {
  if (address_ != nullptr && forks() == forks_) ::munmap(address_, size_bytes_);
}

SharedMemory SharedMemory::create(const char* name, const std::string& directory, std::uint64_t size_bytes,
                                  std::size_t mapped_bytes) {
  FileDescriptor fd = directory.empty() ? nameless(name) : nameless_in(directory);
  if (::ftruncate(fd.number(), static_cast<off_t>(size_bytes)) != 0) {
    throw_system_fault("ftruncate", text("giving shared memory '", name, "' ", size_bytes, " bytes"), errno);
  }
  if (directory.empty() && ::fcntl(fd.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system_fault("fcntl", text("sealing the size of shared memory '", name, "'"), errno);
  }
  reserve(fd.number(), {0, mapped_bytes});
  Mapping mapping = map_shared(fd.number(), {0, mapped_bytes});
  return {std::move(fd), std::move(mapping)};
}

SharedMemory SharedMemory::attach(int fd, std::size_t mapped_bytes) {
  FileDescriptor own(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (own.number() < 0) throw_system_fault("fcntl", text("attaching to shared memory of descriptor ", fd), errno);
  struct stat status {};
  if (::fstat(own.number(), &status) != 0) throw_system_fault("fstat", text("looking at descriptor ", fd), errno);
  if (status.st_size < static_cast<off_t>(mapped_bytes)) {
    throw Fault(Fault::Kind::device,
                text("descriptor ", fd, " holds ", status.st_size, " bytes, a device ledger ", mapped_bytes),
                "Pass the descriptor that Ledger.create made.");
  }
  Mapping mapping = map_shared(own.number(), {0, mapped_bytes});
  return {std::move(own), std::move(mapping)};
}

std::uint64_t page_bytes() {
  static const auto size = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

Mapping map_unforked(int fd, Range range) {
  Mapping mapping = map_shared(fd, range);
  keep_from_children(mapping.address(), range.size_bytes);
  return mapping;
}

void reserve(int fd, Range range) {
  const std::uint64_t left_bytes = available_bytes();
  if (left_bytes < range.size_bytes + spare_bytes) {
    throw_no_memory(range.size_bytes, text(left_bytes, " are available, and ", spare_bytes, " must remain"));
  }
  int status = 0;
  do {
    status = ::fallocate(fd, 0, static_cast<off_t>(range.offset), static_cast<off_t>(range.size_bytes));
  } while (status != 0 && errno == EINTR);
  if (status != 0) throw_no_memory(range.size_bytes, std::generic_category().message(errno));
}

void punch(int fd, Range range) {
  int status = 0;
  do {
    status = ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.offset),
                         static_cast<off_t>(range.size_bytes));
  } while (status != 0 && errno == EINTR);
  if (status != 0) throw_system_fault("fallocate", text("wiping ", range.size_bytes, " bytes of the device"), errno);
}

Mapping reserve_address_space(std::size_t size_bytes, bool usable) {
  const int protection = usable ? PROT_READ | PROT_WRITE : PROT_NONE;
  const std::size_t slack_bytes = size_bytes < huge_page_bytes ? 0 : huge_page_bytes;
  void* const mapped =
      ::mmap(nullptr, size_bytes + slack_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED)
    throw_system_fault("mmap", text("reserving ", size_bytes, " bytes of address space"), errno);
  auto* const first = static_cast<std::byte*>(mapped);
  std::uint64_t before_bytes = 0;
  if (slack_bytes != 0) {
    const std::uint64_t start = reinterpret_cast<std::uintptr_t>(mapped);
    before_bytes = rounded_up(start, huge_page_bytes) - start;
    if (before_bytes != 0) ::munmap(first, before_bytes);
    ::munmap(first + before_bytes + rounded_up(size_bytes, page_bytes()), slack_bytes - before_bytes);
  }
  Mapping range(first + before_bytes, size_bytes);
  keep_from_children(range.address(), size_bytes);
  return range;
}

void keep_from_children(std::byte* address, std::size_t size_bytes) {
  if (::madvise(address, size_bytes, MADV_DONTFORK) != 0) {
    throw_system_fault("madvise", text("keeping ", size_bytes, " bytes from forked children"), errno);
  }
}

void prefer_huge_pages(std::byte* address, std::size_t size_bytes) {
  ::madvise(address, size_bytes, MADV_HUGEPAGE);  // a kernel without huge pages refuses, and the pages stay small
}

void populate(std::byte* address, std::size_t size_bytes) {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(address, size_bytes, MADV_POPULATE_WRITE) == 0) return;
  if (errno != EINVAL) {
    const int error_number = errno;
    throw Fault(
        Fault::Kind::memory,
        text("the system has no memory for ", size_bytes, " more bytes of the host pool (errno ", error_number, ")"),
        "Lower the host pool's limit or the number of jobs, or give the machine more memory.");
  }
#endif
  // Kernels before 5.14 do not know this advice; one write per page has the same effect.
  for (std::size_t offset = 0; offset < size_bytes; offset += page_bytes()) {
    *static_cast<volatile std::byte*>(address + offset) = std::byte{0};
  }
}

void discard(std::byte* address, std::size_t size_bytes) {
  if (::madvise(address, size_bytes, MADV_DONTNEED) != 0) {
    throw_system_fault("madvise", text("giving back ", size_bytes, " bytes of the host pool"), errno);
  }
}

}  // namespace tensile
