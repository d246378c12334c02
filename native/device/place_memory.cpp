#include "place_memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "fault.hpp"

namespace tensile {

FilePlaces::FilePlaces(Ledger ledger, std::uintptr_t begin, std::uint32_t places)
    : ledger_(std::move(ledger)),
      begin_(begin),
      places_(places),
      region_bytes_(ledger_.words().header.region_bytes) {}

FilePlaces::~FilePlaces() {
  if (!mapped_) return;
  ::mmap(reinterpret_cast<void*>(begin_), places_ * region_bytes_, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void FilePlaces::back(std::uint64_t region) { reserve(ledger_.fd(), bytes_of(region)); }

void FilePlaces::map(std::uint32_t place, std::uint64_t region) {
  auto* const address = reinterpret_cast<void*>(begin_ + place * region_bytes_);
  mapped_ = true;
  if (::mmap(address, region_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ledger_.fd(),
             static_cast<off_t>(bytes_of(region).offset)) == MAP_FAILED) {
    throw_system_fault("mmap", text("mapping region ", region, " of a round"), errno);
  }
  ::madvise(address, region_bytes_, MADV_DONTFORK);
#ifdef MADV_POPULATE_WRITE
  ::madvise(address, region_bytes_, MADV_POPULATE_WRITE);  // otherwise the first access to each page faults
#endif
}

Range FilePlaces::bytes_of(std::uint64_t region) const noexcept {
  return {ledger_.words().header.memory_offset + region * region_bytes_, region_bytes_};
}

std::unique_ptr<PlaceMemory> file_places(Ledger ledger, std::uintptr_t begin, std::uint32_t places) {
  if (begin == 0 || ledger.words().header.memory_offset == 0) return nullptr;
  return std::make_unique<FilePlaces>(std::move(ledger), begin, places);
}

}  // namespace tensile
