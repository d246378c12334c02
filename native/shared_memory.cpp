#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "fault.hpp"

namespace tensile {
namespace {

Mapping map_shared(int fd, std::size_t size_bytes) {
  void* address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) throw_system_fault("mmap", text("mapping shared memory of descriptor ", fd), errno);
  return {address, size_bytes};
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) ::close(number_);
}

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, size_bytes_);
}

SharedMemory SharedMemory::create(const char* name, std::size_t size_bytes) {
  FileDescriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.number() < 0) throw_system_fault("memfd_create", text("creating shared memory '", name, "'"), errno);
  if (::ftruncate(fd.number(), static_cast<off_t>(size_bytes)) != 0) {
    throw_system_fault("ftruncate", text("giving shared memory '", name, "' ", size_bytes, " bytes"), errno);
  }
  if (::fcntl(fd.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    throw_system_fault("fcntl", text("sealing the size of shared memory '", name, "'"), errno);
  }
  Mapping mapping = map_shared(fd.number(), size_bytes);
  return {std::move(fd), std::move(mapping)};
}

SharedMemory SharedMemory::attach(int fd, std::size_t size_bytes) {
  FileDescriptor own(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (own.number() < 0) throw_system_fault("fcntl", text("attaching to shared memory of descriptor ", fd), errno);
  struct stat status {};
  if (::fstat(own.number(), &status) != 0) throw_system_fault("fstat", text("looking at descriptor ", fd), errno);
  if (status.st_size < static_cast<off_t>(size_bytes)) {
    throw Fault(Fault::Kind::device,
                text("descriptor ", fd, " holds ", status.st_size, " bytes, a device ledger ", size_bytes),
                "Pass the descriptor that Ledger.create made.");
  }
  Mapping mapping = map_shared(own.number(), size_bytes);
  return {std::move(own), std::move(mapping)};
}

Mapping reserve_address_space(std::size_t size_bytes) {
  void* address =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) throw_system_fault("mmap", text("reserving ", size_bytes, " bytes"), errno);
  return {address, size_bytes};
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
  // Kernels before 5.14 do not know the advice: one write per page does the same.
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t offset = 0; offset < size_bytes; offset += page_bytes) {
    *static_cast<volatile std::byte*>(address + offset) = std::byte{0};
  }
}

}  // namespace tensile
