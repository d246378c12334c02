// The fake driver's calls for virtual memory. A handle's physical memory is a file.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <iterator>
#include <memory>
#include <set>

#include "fake_state.hpp"

namespace fake_cuda {
namespace {

Result memory_granularity(std::size_t* bytes, const AllocationProperties* properties, Granularity) {
  ENTER("cuMemGetAllocationGranularity");
  if (properties->type != AllocationType::pinned || !is_device(properties->location.id)) return Result::invalid_value;
  *bytes = granularity();
  return Result::success;
}

Result address_reserve(Address* address, std::size_t size_bytes, std::size_t, Address, unsigned long long flags) {
  ENTER("cuMemAddressReserve");
  if (size_bytes == 0 || size_bytes % granularity() != 0 || flags != 0) {
    return entry.refuse(Result::invalid_value, "size");
  }
  const std::size_t raw_bytes = size_bytes + granularity();
  void* raw = ::mmap(nullptr, raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return Result::out_of_memory;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  *address = (begin + granularity() - 1) / granularity() * granularity();
  now.reservations.emplace(*address, Reservation{raw, raw_bytes, size_bytes});
  return Result::success;
}

Result address_free(Address address, std::size_t size_bytes) {
  ENTER_RELEASE("cuMemAddressFree");
  const auto match = now.reservations.find(address);
  if (match == now.reservations.end() || match->second.size_bytes != size_bytes) {
    return entry.refuse(Result::invalid_value, "no such reservation");
  }
  const auto mapped = now.mappings.lower_bound(address);
  if (mapped != now.mappings.end() && mapped->first < address + size_bytes) {
    return entry.refuse(Result::invalid_value, "part of it is still mapped");
  }
  ::munmap(match->second.raw, match->second.raw_bytes);
  now.reservations.erase(match);
  return entry.result();
}

Result memory_create(AllocationHandle* handle, std::size_t size_bytes, const AllocationProperties* properties,
                     unsigned long long flags) {
  ENTER("cuMemCreate");
  if (size_bytes % granularity() != 0 || properties->windows_only != nullptr || flags != 0) {
    return entry.refuse(Result::invalid_value, "size");
  }
  if (physical_bytes() + size_bytes > memory_bytes()) return Result::out_of_memory;
  const int file = ::memfd_create("fake-cuda-memory", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(size_bytes)) != 0) return Result::operating_system;
  *handle = now.next_handle++;
  now.handles.emplace(*handle, std::make_shared<Physical>(file, size_bytes));
  return Result::success;
}

Result memory_release(AllocationHandle handle) {
  ENTER_RELEASE("cuMemRelease");
  if (now.handles.erase(handle) == 0) return entry.refuse(Result::invalid_value, "no handle");
  return entry.result();
}

Result memory_map(Address address, std::size_t size_bytes, std::size_t offset, AllocationHandle handle,
                  unsigned long long flags) {
  ENTER("cuMemMap");
  NEED_CONTEXT_TO_MAP();
  const auto memory = now.handles.find(handle);
  if (memory == now.handles.end() || memory->second->size_bytes != size_bytes || offset != 0 || flags != 0) {
    return entry.refuse(Result::invalid_value, "no such memory");
  }
  auto reserved = now.reservations.upper_bound(address);
  if (reserved == now.reservations.begin()) return entry.refuse(Result::invalid_value, "not reserved");
  --reserved;
  if (address + size_bytes > reserved->first + reserved->second.size_bytes || address % granularity() != 0) {
    return entry.refuse(Result::invalid_value, "not reserved");
  }
  if (now.mappings.contains(address)) return entry.refuse(Result::invalid_value, "mapped already");
  void* place = reinterpret_cast<void*>(address);
  if (::mmap(place, size_bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second->file, 0) == MAP_FAILED) {
    return Result::operating_system;
  }
  now.mappings.emplace(address, Mapping{memory->second});
  return Result::success;
}

Result memory_unmap(Address address, std::size_t size_bytes) {
  ENTER_RELEASE("cuMemUnmap");
  const auto match = now.mappings.find(address);
  if (match == now.mappings.end() || match->second.memory->size_bytes != size_bytes) {
    return entry.refuse(Result::invalid_value, "no such mapping");
  }
  if (now.queues.uses(address, size_bytes)) entry.refuse(Result::success, "queued work still uses it");
  ::mmap(reinterpret_cast<void*>(address), size_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  now.mappings.erase(match);
  return entry.result();
}

Result memory_allow(Address address, std::size_t size_bytes, const AccessDescription* requested, std::size_t count) {
  ENTER("cuMemSetAccess");
  NEED_CONTEXT_TO_MAP();
  if (count != 1 || requested->flags != access_read_write || !is_device(requested->location.id)) {
    return entry.refuse(Result::invalid_value, "access");
  }
  Address end = address;
  while (end < address + size_bytes) {
    const auto mapping = now.mappings.find(end);
    if (mapping == now.mappings.end()) return entry.refuse(Result::invalid_value, "not mapped as a whole");
    mapping->second.allowed = true;
    end += mapping->second.memory->size_bytes;
  }
  if (end != address + size_bytes) return entry.refuse(Result::invalid_value, "not mapped as a whole");
  ::mprotect(reinterpret_cast<void*>(address), size_bytes, PROT_READ | PROT_WRITE);
  return Result::success;
}

Result memory_retain(AllocationHandle* handle, void* mapped) {
  ENTER("cuMemRetainAllocationHandle");
  const auto mapping = now.mappings.find(reinterpret_cast<Address>(mapped));
  if (mapping == now.mappings.end()) return entry.refuse(Result::invalid_value, "nothing is mapped there");
  *handle = now.next_handle++;
  now.handles.emplace(*handle, mapping->second.memory);
  return Result::success;
}

Result memory_export(void* descriptor, AllocationHandle handle, HandleType type, unsigned long long flags) {
  ENTER("cuMemExportToShareableHandle");
  const auto memory = now.handles.find(handle);
  if (memory == now.handles.end() || type != HandleType::file_descriptor || flags != 0) {
    return entry.refuse(Result::invalid_value, "no such memory");
  }
  const int copied = ::dup(memory->second->file);
  if (copied < 0) return Result::operating_system;
  std::memcpy(descriptor, &copied, sizeof(copied));
  return Result::success;
}

Result memory_import(AllocationHandle* handle, void* descriptor, HandleType type) {
  ENTER("cuMemImportFromShareableHandle");
  NEED_CONTEXT_TO_MAP();
  const auto answer = static_cast<Result>(setting("FAKE_CUDA_IMPORT", 0));
  if (answer != Result::success) return answer;
  if (type != HandleType::file_descriptor) return entry.refuse(Result::invalid_value, "type");
  const int copied = ::dup(static_cast<int>(reinterpret_cast<std::uintptr_t>(descriptor)));
  if (copied < 0) return entry.refuse(Result::invalid_value, "no descriptor");
  const off_t size_bytes = ::lseek(copied, 0, SEEK_END);
  *handle = now.next_handle++;
  now.handles.emplace(*handle, std::make_shared<Physical>(copied, static_cast<std::size_t>(size_bytes)));
  return Result::success;
}

}  // namespace

std::size_t physical_bytes() {
  const State& now = state();
  std::size_t used_bytes = 0;
  std::set<ino_t> counted;
  const auto count = [&](const Physical& memory) {
    struct stat facts {};
    if (::fstat(memory.file, &facts) == 0 && counted.insert(facts.st_ino).second) used_bytes += memory.size_bytes;
  };
  for (const auto& [handle, memory] : now.handles) count(*memory);
  for (const auto& [address, mapping] : now.mappings) count(*mapping.memory);
  return used_bytes;
}

bool accessible(Address address, std::size_t size_bytes) {
  const State& now = state();
  const Address end = address + size_bytes;
  if (const auto plain = now.plain.upper_bound(address); plain != now.plain.begin()) {
    const auto& [begin, bytes] = *std::prev(plain);
    if (end <= begin + bytes) return true;
  }
  while (address < end) {
    auto mapping = now.mappings.upper_bound(address);
    if (mapping == now.mappings.begin()) return false;
    --mapping;
    const Address mapped_end = mapping->first + mapping->second.memory->size_bytes;
    if (address >= mapped_end || !mapping->second.allowed) return false;
    address = mapped_end;
  }
  return true;
}

const Calls& memory_calls() {
  static const Calls all{
      {"cuMemGetAllocationGranularity", {10020, address_of(memory_granularity)}},
      {"cuMemAddressReserve", {10020, address_of(address_reserve)}},
      {"cuMemAddressFree", {10020, address_of(address_free)}},
      {"cuMemCreate", {10020, address_of(memory_create)}},
      {"cuMemRelease", {10020, address_of(memory_release)}},
      {"cuMemMap", {10020, address_of(memory_map)}},
      {"cuMemUnmap", {10020, address_of(memory_unmap)}},
      {"cuMemSetAccess", {10020, address_of(memory_allow)}},
      {"cuMemRetainAllocationHandle", {11000, address_of(memory_retain)}},
      {"cuMemExportToShareableHandle", {10020, address_of(memory_export)}},
      {"cuMemImportFromShareableHandle", {10020, address_of(memory_import)}},
  };
  return all;
}

}  // namespace fake_cuda
