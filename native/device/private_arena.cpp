#include "private_arena.hpp"

#include <sys/mman.h>

#include <cerrno>

#include "fault.hpp"

namespace tensile {
namespace {

void* allocate(void* context, std::size_t size_bytes) {
  try {
    return static_cast<HostPool*>(context)->allocate(size_bytes);
  } catch (const Fault&) {
    return nullptr;
  }
}

int release(void* context, void* address) {
  try {
    static_cast<HostPool*>(context)->free(static_cast<const std::byte*>(address));
    return 0;
  } catch (const Fault&) {
    return -1;
  }
}

}  // namespace

PrivateArena::PrivateArena(std::uint64_t limit_bytes)
    : pool_(limit_bytes, {[](std::byte*, std::size_t) {}, [](std::byte*, std::size_t) {}}),
      hook_{&pool_, &allocate, &release, pool_.begin(), pool_.begin() + limit_bytes, 1, nullptr} {
  // No other process uses this mapping; it is shared because only shared memory can be mapped twice (window.hpp).
  void* const whole = reinterpret_cast<void*>(pool_.begin());
  if (::mmap(whole, rounded_up(limit_bytes, page_bytes()), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    throw_system_fault("mmap", text("mapping a private arena of ", limit_bytes, " bytes"), errno);
  }
  ::madvise(whole, limit_bytes, MADV_DONTFORK);
}

void PrivateArena::trim(const tensile_arena_hook& hook) {
  const HostUsage usage = static_cast<const HostPool*>(hook.context)->usage();
  if (usage.used_bytes != 0 || usage.resident_bytes == 0) return;
  // MADV_DONTNEED does not give shared memory back; punching a hole does.
  if (::madvise(reinterpret_cast<void*>(hook.begin), rounded_up(usage.resident_bytes, page_bytes()), MADV_REMOVE) !=
      0) {
    throw_system_fault("madvise", text("giving back ", usage.resident_bytes, " bytes of a private arena"), errno);
  }
}

}  // namespace tensile
