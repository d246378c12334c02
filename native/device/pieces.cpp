#include "pieces.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "fault.hpp"

namespace tensile {
namespace {

// Each piece is a mapping, and the system limits the number of mappings of a process (not their total size), so
// pieces are not smaller than this.
constexpr std::uint64_t least_piece_bytes = std::uint64_t{1} << 20;

std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// Replace the mapping of a range by one without memory.
void close_range(std::byte* address, std::size_t size_bytes) {
  if (::mmap(address, size_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED) {
    throw_system_fault("mmap", text("closing ", size_bytes, " bytes of a window"), errno);
  }
}

// Map pages of a shared mapping at a second address as well: mremap does so when the old size is 0.
bool map_again(std::byte* pages, std::byte* address, std::size_t size_bytes) {
  if (::mremap(pages, 0, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) return false;
  ::madvise(address, size_bytes, MADV_DONTFORK);
#ifdef MADV_POPULATE_WRITE
  ::madvise(address, size_bytes, MADV_POPULATE_WRITE);  // otherwise the first access to each page faults
#endif
  return true;
}

}  // namespace

PagePieces::PagePieces(const tensile_arena_hook& arena)
    : arena_(arena),
      piece_bytes_(rounded_up(least_piece_bytes, arena.region_bytes)),
      range_(reserve_address_space(rounded_up(arena.end - arena.begin, piece_bytes_))) {
  close_range(range_.address(), range_.size_bytes());
}

void* PagePieces::add(std::uint64_t offset, std::uint64_t size_bytes) {
  std::byte* pages = nullptr;
  void* const taken = take(size_bytes, &pages);
  if (taken == nullptr || map_again(pages, range_.address() + offset, size_bytes)) return taken;
  arena_.release(arena_.context, taken);
  return nullptr;
}

bool PagePieces::is_scattered(const void* taken) const noexcept {
  return (address_of(taken) - arena_.begin) % arena_.region_bytes != 0;
}

void PagePieces::remove(void* taken, std::uint64_t offset, std::uint64_t size_bytes) {
  close_range(range_.address() + offset, size_bytes);
  arena_.release(arena_.context, taken);
}

// Take whole regions, or else whole pages. An allocation that does not start at a page boundary needs one page more
// to contain the whole pages.
void* PagePieces::take(std::uint64_t size_bytes, std::byte** pages) const {
  if (arena_.allocate_whole != nullptr) {
    void* const taken = arena_.allocate_whole(arena_.context, size_bytes);
    *pages = static_cast<std::byte*>(taken);
    if (taken != nullptr) return taken;
  }
  for (const std::uint64_t spare_bytes : {std::uint64_t{0}, page_bytes()}) {
    void* const taken = arena_.allocate(arena_.context, size_bytes + spare_bytes);
    if (taken == nullptr) return nullptr;
    *pages = static_cast<std::byte*>(taken) + (rounded_up(address_of(taken), page_bytes()) - address_of(taken));
    if (*pages + size_bytes <= static_cast<std::byte*>(taken) + size_bytes + spare_bytes) return taken;
    arena_.release(arena_.context, taken);
  }
  return nullptr;
}

}  // namespace tensile
