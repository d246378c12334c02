#include "private_arena.hpp"

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
    : pool_(limit_bytes), hook_{&pool_, &allocate, &release, pool_.begin(), pool_.begin() + limit_bytes} {}

}  // namespace tensile
