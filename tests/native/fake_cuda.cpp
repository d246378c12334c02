#include "fake_cuda.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "fake_queues.hpp"
#include "fault.hpp"

namespace fake_cuda {

using namespace tensile::cuda;
using tensile::text;

namespace {

constexpr std::size_t granularity_bytes = std::size_t{2} << 20;
constexpr int device_count_limit = 8;

struct FakeEvent {
  bool timed;
  std::shared_ptr<Mark> mark;
};

// A process's handle to physical memory, which is a file.
struct Physical {
  Physical(int opened, std::size_t bytes) : file(opened), size_bytes(bytes) {}
  ~Physical() { ::close(file); }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;

  const int file;
  const std::size_t size_bytes;
};

struct Mapping {
  std::shared_ptr<Physical> memory;
  bool allowed = false;
};

struct Reservation {
  void* raw;
  std::size_t raw_bytes;
  std::size_t size_bytes;
};

struct State {
  std::mutex mutex;
  std::vector<std::string> violations;
  Queues queues{violations};
  std::uint64_t calls = 0;
  std::uint64_t failing_call = 0;
  Result failing_result = Result::success;
  Result lost = Result::success;
  std::string failed_call;
  bool initialized = false;
  std::uint64_t contexts = 0;  // number of retained references
  unsigned int context_flags = 0;
  std::uint64_t pushed = 0;
  Queue* default_queue = queues.make();
  Queue* side_queue = queues.make();
  std::set<Queue*> streams;
  std::map<FakeEvent*, std::unique_ptr<FakeEvent>> events;
  AllocationHandle next_handle = 1;
  std::map<AllocationHandle, std::shared_ptr<Physical>> handles;
  std::map<Address, Reservation> reservations;
  std::map<Address, Mapping> mappings;
  std::map<std::uint64_t, std::size_t> pinned;
  std::map<Address, std::size_t> plain;
};

State& state() {
  static State instance;
  return instance;
}

thread_local std::vector<Context> current;
thread_local bool relaxed = false;

int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// One call of the driver: holds the lock, and knows whether the call is to fail.
class Entry {
 public:
  explicit Entry(const char* name) : lock_(state().mutex), name_(name) {
    State& now = state();
    ++now.calls;
    if (now.lost != Result::success) result_ = now.lost;
    if (now.calls == now.failing_call) {
      now.failed_call = name;
      result_ = now.failing_result;
    }
  }

  bool fails() const { return result_ != Result::success; }
  Result result() const { return result_; }
  const char* name() const { return name_; }

  // Record a violation, and return the result that the API would.
  Result refuse(Result result, const std::string& why) const {
    state().violations.push_back(text(name_, ": ", why));
    if (setting("FAKE_CUDA_HOST_COMPUTES", 0) != 0) std::fprintf(stderr, "fake CUDA: %s: %s\n", name_, why.c_str());
    return result;
  }

 private:
  std::lock_guard<std::mutex> lock_;
  const char* name_;
  Result result_ = Result::success;
};

#define ENTER(name)        \
  const Entry entry(name); \
  State& now = state();    \
  static_cast<void>(now);  \
  if (entry.fails()) return entry.result()

// Begins a call that releases a resource: the resource is released whatever the result.
#define ENTER_RELEASE(name) \
  const Entry entry(name);  \
  State& now = state()

// Refuses a call that the API forbids while a stream is captured, except in a thread in relaxed mode.
#define NEED_NO_CAPTURE()                                                \
  if (now.queues.captures() && !relaxed) {                               \
    now.queues.break_capture(entry.name());                              \
    return entry.refuse(Result::capture_unsupported, "while capturing"); \
  }

#define NEED_CONTEXT() \
  if (current.empty()) return entry.refuse(Result::invalid_context, "no context is current")

// Needs a current context only in strict mode: the API's reference does not say whether these calls need one.
#define NEED_CONTEXT_TO_MAP() \
  if (setting("FAKE_CUDA_STRICT_MAPS", 0) != 0) NEED_CONTEXT()

// Needs a current context, unless no context can be current because the driver was made to fail.
#define NEED_CONTEXT_TO_RELEASE()                                                                \
  if (current.empty() && now.failed_call != "cuCtxPushCurrent" && now.lost == Result::success) { \
    return entry.refuse(Result::invalid_context, "no context is current");                       \
  }

Queue* queue_of(StreamPointer stream) {
  return stream == nullptr ? state().default_queue : reinterpret_cast<Queue*>(stream);
}

bool is_stream(StreamPointer stream) {
  Queue* queue = queue_of(stream);
  return stream == nullptr || queue == state().side_queue || state().streams.contains(queue);
}

FakeEvent* event_of(EventPointer event) {
  const auto match = state().events.find(reinterpret_cast<FakeEvent*>(event));
  return match == state().events.end() ? nullptr : match->second.get();
}

std::size_t memory_bytes() { return static_cast<std::size_t>(setting("FAKE_CUDA_MEMORY_MB", 256)) << 20; }

bool is_device(DeviceNumber device) { return device >= 0 && device < setting("FAKE_CUDA_DEVICES", 1); }

// Return whether all these bytes are mapped and access to them was granted.
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

bool is_pinned(const void* host, std::size_t size_bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(host);
  auto range = state().pinned.upper_bound(begin);
  if (range == state().pinned.begin()) return false;
  --range;
  return begin + size_bytes <= range->first + range->second;
}

// --- devices and contexts ---

Result init(unsigned int flags) {
  ENTER("cuInit");
  if (flags != 0) return entry.refuse(Result::invalid_value, "flags");
  const auto answer = static_cast<Result>(setting("FAKE_CUDA_INIT", 0));
  if (answer != Result::success) return answer;
  if (setting("FAKE_CUDA_DEVICES", 1) == 0) return Result::no_device;
  now.initialized = true;
  if (setting("FAKE_CUDA_HOST_COMPUTES", 0) != 0) now.queues.follow_host(now.default_queue);
  return Result::success;
}

Result device_count(int* count) {
  ENTER("cuDeviceGetCount");
  if (!now.initialized) return Result::not_initialized;
  *count = std::min(setting("FAKE_CUDA_DEVICES", 1), device_count_limit);
  return Result::success;
}

Result device_get(DeviceNumber* device, int ordinal) {
  ENTER("cuDeviceGet");
  if (!is_device(ordinal)) return Result::invalid_device;
  *device = ordinal;
  return Result::success;
}

Result device_name(char* name, int size, DeviceNumber device) {
  ENTER("cuDeviceGetName");
  if (!is_device(device)) return Result::invalid_device;
  std::snprintf(name, static_cast<std::size_t>(size), "Fake GPU %d", device);
  return Result::success;
}

Result device_memory(std::size_t* bytes, DeviceNumber device) {
  ENTER("cuDeviceTotalMem");
  if (!is_device(device)) return Result::invalid_device;
  *bytes = memory_bytes();
  return Result::success;
}

Result device_attribute(int* value, Attribute attribute, DeviceNumber device) {
  ENTER("cuDeviceGetAttribute");
  if (!is_device(device)) return Result::invalid_device;
  static const std::map<Attribute, int> values{
      {Attribute::clock_khz, 1'000'000}, {Attribute::multiprocessors, 10}, {Attribute::memory_clock_khz, 500'000},
      {Attribute::memory_bus_bits, 256}, {Attribute::copy_engines, 2},     {Attribute::capability_major, 8},
      {Attribute::capability_minor, 6},  {Attribute::virtual_memory, 1},   {Attribute::descriptor_handles, 1},
  };
  const auto match = values.find(attribute);
  if (match == values.end()) return entry.refuse(Result::invalid_value, "an attribute that it does not know");
  *value = match->second;
  return Result::success;
}

Result device_uuid(unsigned char (*uuid)[16], DeviceNumber device) {
  ENTER("cuDeviceGetUuid");
  if (!is_device(device)) return Result::invalid_device;
  for (unsigned char i = 0; i < 16; ++i) (*uuid)[i] = static_cast<unsigned char>(i * 17);
  return Result::success;
}

Result context_set_flags(DeviceNumber device, unsigned int flags) {
  ENTER("cuDevicePrimaryCtxSetFlags");
  if (!is_device(device)) return Result::invalid_device;
  if (now.contexts != 0) return Result::primary_context_active;  // as drivers before CUDA 12 do
  now.context_flags = flags;
  return Result::success;
}

Result context_retain(Context* context, DeviceNumber device) {
  ENTER("cuDevicePrimaryCtxRetain");
  if (!is_device(device)) return Result::invalid_device;
  ++now.contexts;
  *context = reinterpret_cast<Context>(static_cast<std::uintptr_t>(0x1000 + device));
  return Result::success;
}

Result context_release(DeviceNumber) {
  ENTER_RELEASE("cuDevicePrimaryCtxRelease");
  if (now.contexts == 0) return entry.refuse(Result::invalid_context, "the context was not retained");
  if (--now.contexts == 0 && !(now.streams.empty() && now.events.empty() && now.pinned.empty())) {
    entry.refuse(Result::success, "the context goes before what was made in it");
  }
  return entry.result();
}

Result context_push(Context context) {
  ENTER("cuCtxPushCurrent");
  if (now.contexts == 0) return entry.refuse(Result::invalid_context, "the context was not retained");
  current.push_back(context);
  ++now.pushed;
  return Result::success;
}

Result context_pop(Context* context) {
  ENTER_RELEASE("cuCtxPopCurrent");
  if (current.empty()) return entry.refuse(Result::invalid_context, "no context is current");
  *context = current.back();
  current.pop_back();
  --now.pushed;
  return entry.result();
}

Result context_synchronize() {
  ENTER_RELEASE("cuCtxSynchronize");
  NEED_CONTEXT_TO_RELEASE();
  NEED_NO_CAPTURE();
  now.queues.drain_all();
  return entry.result();
}

// --- host memory and copies ---

Result host_register(void* address, std::size_t size_bytes, unsigned int) {
  ENTER("cuMemHostRegister");
  NEED_CONTEXT();
  NEED_NO_CAPTURE();
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  for (const auto& [other, other_bytes] : now.pinned) {
    if (begin < other + other_bytes && other < begin + size_bytes) {
      return entry.refuse(Result::host_memory_already_registered, "registered twice");
    }
  }
  now.pinned.emplace(begin, size_bytes);
  return Result::success;
}

Result host_unregister(void* address) {
  ENTER_RELEASE("cuMemHostUnregister");
  NEED_CONTEXT_TO_RELEASE();
  const auto match = now.pinned.find(reinterpret_cast<std::uintptr_t>(address));
  if (match == now.pinned.end()) return entry.refuse(Result::host_memory_not_registered, "not registered");
  if (now.queues.uses(match->first, match->second)) entry.refuse(Result::success, "queued work still uses it");
  now.pinned.erase(match);
  return entry.result();
}

Result plain_allocate(Address* address, std::size_t size_bytes) {
  ENTER("cuMemAlloc");
  NEED_CONTEXT();
  NEED_NO_CAPTURE();
  *address = reinterpret_cast<Address>(std::aligned_alloc(512, (size_bytes + 511) / 512 * 512));
  if (*address == 0) return Result::out_of_memory;
  now.plain.emplace(*address, size_bytes);
  return Result::success;
}

Result plain_free(Address address) {
  ENTER_RELEASE("cuMemFree");
  NEED_CONTEXT_TO_RELEASE();
  NEED_NO_CAPTURE();
  if (now.plain.erase(address) == 0) return entry.refuse(Result::invalid_value, "not allocated");
  now.queues.drain_all();
  std::free(reinterpret_cast<void*>(address));
  return entry.result();
}

Result copy(const Entry& entry, Address device, void* host, std::size_t size_bytes, StreamPointer stream, bool out) {
  NEED_CONTEXT();
  if (!is_stream(stream)) return entry.refuse(Result::invalid_handle, "no stream");
  if (!accessible(device, size_bytes)) return entry.refuse(Result::invalid_value, "device memory is not accessible");
  if (!is_pinned(host, size_bytes)) return entry.refuse(Result::invalid_value, "host memory is not pinned as one");
  const auto host_begin = reinterpret_cast<std::uintptr_t>(host);
  state().queues.add(*queue_of(stream), {{device, size_bytes, !out}, {host_begin, size_bytes, out}},
                     [device, host, size_bytes, out] {
                       if (!accessible(device, size_bytes) || !is_pinned(host, size_bytes)) {
                         state().violations.push_back("a copy ran after its memory had gone");
                         return;
                       }
                       auto* memory = reinterpret_cast<void*>(device);
                       std::memcpy(out ? host : memory, out ? memory : host, size_bytes);
                     });
  return Result::success;
}

Result copy_in(Address device, const void* host, std::size_t size_bytes, StreamPointer stream) {
  ENTER("cuMemcpyHtoDAsync");
  return copy(entry, device, const_cast<void*>(host), size_bytes, stream, false);
}

Result copy_out(void* host, Address device, std::size_t size_bytes, StreamPointer stream) {
  ENTER("cuMemcpyDtoHAsync");
  return copy(entry, device, host, size_bytes, stream, true);
}

Result fill(Address device, unsigned char value, std::size_t size_bytes, StreamPointer stream) {
  ENTER("cuMemsetD8Async");
  NEED_CONTEXT();
  if (!is_stream(stream)) return entry.refuse(Result::invalid_handle, "no stream");
  if (!accessible(device, size_bytes)) return entry.refuse(Result::invalid_value, "device memory is not accessible");
  now.queues.add(*queue_of(stream), {{device, size_bytes, true}},
                 [=] { std::memset(reinterpret_cast<void*>(device), value, size_bytes); });
  return Result::success;
}

// --- streams and events ---

Result stream_create(StreamPointer* stream, unsigned int) {
  ENTER("cuStreamCreate");
  NEED_CONTEXT();
  Queue* made = now.queues.make();
  now.streams.insert(made);
  *stream = reinterpret_cast<StreamPointer>(made);
  return Result::success;
}

Result stream_destroy(StreamPointer stream) {
  ENTER_RELEASE("cuStreamDestroy");
  NEED_CONTEXT_TO_RELEASE();
  if (now.streams.erase(queue_of(stream)) == 0) return entry.refuse(Result::invalid_handle, "no stream");
  now.queues.destroy(queue_of(stream));
  return entry.result();
}

Result stream_wait(StreamPointer stream, EventPointer event, unsigned int flags) {
  ENTER("cuStreamWaitEvent");
  NEED_CONTEXT();
  const FakeEvent* match = event_of(event);
  if (match == nullptr || !is_stream(stream) || flags != 0) return entry.refuse(Result::invalid_handle, "no event");
  now.queues.wait(*queue_of(stream), match->mark);
  return Result::success;
}

Result stream_synchronize(StreamPointer stream) {
  ENTER_RELEASE("cuStreamSynchronize");
  NEED_CONTEXT_TO_RELEASE();
  NEED_NO_CAPTURE();
  if (!is_stream(stream)) return entry.refuse(Result::invalid_handle, "no stream");
  now.queues.drain(*queue_of(stream));
  return entry.result();
}

Result stream_captures(StreamPointer stream, CaptureStatus* status) {
  ENTER("cuStreamIsCapturing");
  NEED_CONTEXT();
  if (!is_stream(stream)) return entry.refuse(Result::invalid_handle, "no stream");
  *status = Queues::captures(*queue_of(stream)) ? CaptureStatus::active : CaptureStatus::none;
  return Result::success;
}

Result event_create(EventPointer* event, unsigned int flags) {
  ENTER("cuEventCreate");
  NEED_CONTEXT();
  auto made = std::make_unique<FakeEvent>(FakeEvent{flags == event_timed, nullptr});
  *event = reinterpret_cast<EventPointer>(made.get());
  now.events.emplace(made.get(), std::move(made));
  return Result::success;
}

Result event_destroy(EventPointer event) {
  ENTER_RELEASE("cuEventDestroy");
  NEED_CONTEXT_TO_RELEASE();
  if (now.events.erase(reinterpret_cast<FakeEvent*>(event)) == 0) {
    return entry.refuse(Result::invalid_handle, "no event");
  }
  return entry.result();
}

Result event_record(EventPointer event, StreamPointer stream) {
  ENTER("cuEventRecord");
  NEED_CONTEXT();
  FakeEvent* match = event_of(event);
  if (match == nullptr || !is_stream(stream)) return entry.refuse(Result::invalid_handle, "no event");
  match->mark = now.queues.record(*queue_of(stream));
  return Result::success;
}

Result event_query(EventPointer event) {
  ENTER("cuEventQuery");
  NEED_CONTEXT();
  NEED_NO_CAPTURE();
  const FakeEvent* match = event_of(event);
  if (match == nullptr) return entry.refuse(Result::invalid_handle, "no event");
  if (match->mark == nullptr) return Result::success;
  if (match->mark->capture != nullptr) return entry.refuse(Result::captured_event, "it was captured");
  if (!match->mark->done) {
    now.queues.look();
    return Result::not_ready;
  }
  now.queues.seen(*match->mark);
  return Result::success;
}

Result event_elapsed(float* passed_ms, EventPointer begin, EventPointer end) {
  ENTER("cuEventElapsedTime");
  NEED_CONTEXT();
  const FakeEvent* first = event_of(begin);
  const FakeEvent* last = event_of(end);
  if (first == nullptr || last == nullptr || first->mark == nullptr || last->mark == nullptr || !first->timed ||
      !last->timed) {
    return entry.refuse(Result::invalid_handle, "not two timed events that were recorded");
  }
  if (!first->mark->done || !last->mark->done) return Result::not_ready;
  *passed_ms = static_cast<float>(last->mark->at_ms - first->mark->at_ms);
  return Result::success;
}

// --- virtual memory ---

Result granularity(std::size_t* bytes, const AllocationProperties* properties, Granularity) {
  ENTER("cuMemGetAllocationGranularity");
  if (properties->type != AllocationType::pinned || !is_device(properties->location.id)) return Result::invalid_value;
  *bytes = granularity_bytes;
  return Result::success;
}

Result address_reserve(Address* address, std::size_t size_bytes, std::size_t, Address, unsigned long long flags) {
  ENTER("cuMemAddressReserve");
  if (size_bytes == 0 || size_bytes % granularity_bytes != 0 || flags != 0) {
    return entry.refuse(Result::invalid_value, "size");
  }
  const std::size_t raw_bytes = size_bytes + granularity_bytes;
  void* raw = ::mmap(nullptr, raw_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return Result::out_of_memory;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  *address = (begin + granularity_bytes - 1) / granularity_bytes * granularity_bytes;
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
    return entry.refuse(Result::invalid_value, "something is still mapped there");
  }
  ::munmap(match->second.raw, match->second.raw_bytes);
  now.reservations.erase(match);
  return entry.result();
}

Result memory_create(AllocationHandle* handle, std::size_t size_bytes, const AllocationProperties* properties,
                     unsigned long long flags) {
  ENTER("cuMemCreate");
  if (size_bytes % granularity_bytes != 0 || properties->windows_only != nullptr || flags != 0) {
    return entry.refuse(Result::invalid_value, "size");
  }
  std::size_t held_bytes = size_bytes;
  std::set<const Physical*> counted;
  for (const auto& [other, memory] : now.handles) {
    if (counted.insert(memory.get()).second) held_bytes += memory->size_bytes;
  }
  for (const auto& [other, mapping] : now.mappings) {
    if (counted.insert(mapping.memory.get()).second) held_bytes += mapping.memory->size_bytes;
  }
  if (held_bytes > memory_bytes()) return Result::out_of_memory;
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
  if (address + size_bytes > reserved->first + reserved->second.size_bytes || address % granularity_bytes != 0) {
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

template <typename Function>
void* address_of(Function* function) {
  void* address = nullptr;
  std::memcpy(&address, &function, sizeof(address));
  return address;
}

struct Entrance {
  int version;
  void* address;
};

const std::map<std::string, Entrance>& entrances() {
  static const std::map<std::string, Entrance> all{
      {"cuInit", {2000, address_of(init)}},
      {"cuDeviceGetCount", {2000, address_of(device_count)}},
      {"cuDeviceGet", {2000, address_of(device_get)}},
      {"cuDeviceGetName", {2000, address_of(device_name)}},
      {"cuDeviceTotalMem", {3020, address_of(device_memory)}},
      {"cuDeviceGetAttribute", {2000, address_of(device_attribute)}},
      {"cuDeviceGetUuid", {11040, address_of(device_uuid)}},
      {"cuDevicePrimaryCtxSetFlags", {11000, address_of(context_set_flags)}},
      {"cuDevicePrimaryCtxRetain", {7000, address_of(context_retain)}},
      {"cuDevicePrimaryCtxRelease", {11000, address_of(context_release)}},
      {"cuCtxPushCurrent", {4000, address_of(context_push)}},
      {"cuCtxPopCurrent", {4000, address_of(context_pop)}},
      {"cuCtxSynchronize", {2000, address_of(context_synchronize)}},
      {"cuMemAlloc", {3020, address_of(plain_allocate)}},
      {"cuMemFree", {3020, address_of(plain_free)}},
      {"cuMemHostRegister", {6050, address_of(host_register)}},
      {"cuMemHostUnregister", {4000, address_of(host_unregister)}},
      {"cuMemcpyHtoDAsync", {3020, address_of(copy_in)}},
      {"cuMemcpyDtoHAsync", {3020, address_of(copy_out)}},
      {"cuMemsetD8Async", {3020, address_of(fill)}},
      {"cuStreamCreate", {2000, address_of(stream_create)}},
      {"cuStreamDestroy", {4000, address_of(stream_destroy)}},
      {"cuStreamWaitEvent", {3020, address_of(stream_wait)}},
      {"cuStreamSynchronize", {2000, address_of(stream_synchronize)}},
      {"cuStreamIsCapturing", {10000, address_of(stream_captures)}},
      {"cuEventCreate", {2000, address_of(event_create)}},
      {"cuEventDestroy", {4000, address_of(event_destroy)}},
      {"cuEventRecord", {2000, address_of(event_record)}},
      {"cuEventQuery", {2000, address_of(event_query)}},
      {"cuEventElapsedTime", {2000, address_of(event_elapsed)}},
      {"cuMemGetAllocationGranularity", {10020, address_of(granularity)}},
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

}  // namespace

void reset(unsigned int seed) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  now.queues.hold(false);
  now.queues.drain_all();
  now.queues.forget();
  now.queues.seed(seed);
  now.violations.clear();
  now.calls = 0;
  now.failing_call = 0;
  now.lost = Result::success;
  now.failed_call.clear();
}

void fail_call(std::uint64_t number, Result result) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  now.failing_call = now.calls + number;
  now.failing_result = result;
}

std::string failed_call() {
  const std::lock_guard lock(state().mutex);
  return state().failed_call;
}

void lose(Result result) {
  const std::lock_guard lock(state().mutex);
  state().lost = result;
}

unsigned int context_flags() {
  const std::lock_guard lock(state().mutex);
  return state().context_flags;
}

std::vector<std::pair<std::uint64_t, std::size_t>> pinned() {
  const std::lock_guard lock(state().mutex);
  return {state().pinned.begin(), state().pinned.end()};
}

std::string live() {
  const State& now = state();
  const std::lock_guard lock(state().mutex);
  std::string left;
  const auto count = [&](const char* kind, std::size_t number) {
    if (number != 0) left += text(kind, " ", number, "; ");
  };
  count("contexts", now.contexts);
  count("pushed contexts", now.pushed);
  count("streams", now.streams.size());
  count("events", now.events.size());
  count("handles", now.handles.size());
  count("mappings", now.mappings.size());
  count("reservations", now.reservations.size());
  count("pinned ranges", now.pinned.size());
  count("plain allocations", now.plain.size());
  return left;
}

std::string violations() {
  const std::lock_guard lock(state().mutex);
  std::string all;
  for (const std::string& violation : state().violations) all += violation + "; ";
  return all;
}

void launch(StreamPointer stream, std::vector<Access> accesses, std::function<void()> body) {
  State& now = state();
  const std::lock_guard lock(now.mutex);
  for (const Access& access : accesses) {
    if (!accessible(access.begin, access.size_bytes)) now.violations.push_back("a kernel's memory is not accessible");
  }
  now.queues.add(*queue_of(stream), std::move(accesses), std::move(body));
}

StreamPointer side_stream() {
  const std::lock_guard lock(state().mutex);
  return reinterpret_cast<StreamPointer>(state().side_queue);
}

void begin_capture(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  state().queues.begin_capture(*queue_of(stream));
}

std::shared_ptr<const Graph> end_capture(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  return state().queues.end_capture(*queue_of(stream));
}

void drop_capture(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  state().queues.drop_capture(*queue_of(stream));
}

void replay(const std::shared_ptr<const Graph>& graph, StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  state().queues.replay(graph, *queue_of(stream));
}

void relax(bool enabled) { relaxed = enabled; }

void hold(bool enabled) {
  const std::lock_guard lock(state().mutex);
  state().queues.hold(enabled);
}

void settle() {
  const std::lock_guard lock(state().mutex);
  state().queues.drain_all();
}

std::size_t queued(StreamPointer stream) {
  const std::lock_guard lock(state().mutex);
  return state().queues.queued(queue_of(stream));
}

}  // namespace fake_cuda

// --- the symbols that a driver library exports ---

static std::shared_ptr<const fake_cuda::Graph> last_capture;

extern "C" {

tensile::cuda::Result cuDriverGetVersion(int* version);
tensile::cuda::Result cuGetErrorName(tensile::cuda::Result result, const char** name);
tensile::cuda::Result cuGetErrorString(tensile::cuda::Result result, const char** words);
tensile::cuda::Result cuGetProcAddress_v2(const char* symbol, void** address, int version, std::uint64_t flags,
                                          int* status);

// For a process that can only look up the driver's symbols by name: capture the side stream, and replay its last
// recording.
void* fake_cuda_side_stream();
void fake_cuda_begin_capture();
int fake_cuda_end_capture();
void fake_cuda_drop_capture();
void fake_cuda_replay();
void fake_cuda_fail_call(std::uint64_t number, int result);
const char* fake_cuda_violations();

void* fake_cuda_side_stream() { return fake_cuda::side_stream(); }
void fake_cuda_begin_capture() { fake_cuda::begin_capture(fake_cuda::side_stream()); }

int fake_cuda_end_capture() {
  last_capture = fake_cuda::end_capture(fake_cuda::side_stream());
  return last_capture == nullptr ? -1 : 0;
}

void fake_cuda_drop_capture() { fake_cuda::drop_capture(fake_cuda::side_stream()); }

void fake_cuda_replay() {
  fake_cuda::replay(last_capture, fake_cuda::side_stream());
  fake_cuda::settle();
}

void fake_cuda_fail_call(std::uint64_t number, int result) {
  fake_cuda::fail_call(number, static_cast<tensile::cuda::Result>(result));
}

const char* fake_cuda_violations() {
  static std::string message;
  message = fake_cuda::violations();
  return message.c_str();
}

tensile::cuda::Result cuDriverGetVersion(int* version) {
  *version = fake_cuda::setting("FAKE_CUDA_VERSION", 12080);
  const char* fail = std::getenv("FAKE_CUDA_FAIL");
  if (fail != nullptr) {
    char* rest = nullptr;
    const auto number = std::strtoull(fail, &rest, 10);
    fake_cuda::fail_call(number, static_cast<tensile::cuda::Result>(*rest == ':' ? std::atoi(rest + 1) : 999));
  }
  return tensile::cuda::Result::success;
}

tensile::cuda::Result cuGetErrorName(tensile::cuda::Result result, const char** name) {
  static const std::map<tensile::cuda::Result, const char*> names{
      {tensile::cuda::Result::invalid_value, "CUDA_ERROR_INVALID_VALUE"},
      {tensile::cuda::Result::out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY"},
      {tensile::cuda::Result::device_unavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
      {tensile::cuda::Result::ecc_uncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE"},
      {tensile::cuda::Result::launch_failed, "CUDA_ERROR_LAUNCH_FAILED"},
      {tensile::cuda::Result::system_not_ready, "CUDA_ERROR_SYSTEM_NOT_READY"},
      {tensile::cuda::Result::unknown, "CUDA_ERROR_UNKNOWN"},
  };
  const auto match = names.find(result);
  *name = match == names.end() ? nullptr : match->second;
  return *name == nullptr ? tensile::cuda::Result::invalid_value : tensile::cuda::Result::success;
}

tensile::cuda::Result cuGetErrorString(tensile::cuda::Result, const char** words) {
  *words = "the fake driver's words";
  return tensile::cuda::Result::success;
}

tensile::cuda::Result cuGetProcAddress_v2(const char* symbol, void** address, int version, std::uint64_t flags,
                                          int* status) {
  *address = nullptr;
  if (version > fake_cuda::setting("FAKE_CUDA_VERSION", 12080) || flags > 2) {
    return tensile::cuda::Result::invalid_value;
  }
  const char* lacking = std::getenv("FAKE_CUDA_LACKS");
  const auto match = fake_cuda::entrances().find(symbol);
  if (match == fake_cuda::entrances().end() || (lacking != nullptr && match->first == lacking)) {
    *status = 1;
    return tensile::cuda::Result::success;
  }
  *status = version < match->second.version ? 2 : 0;
  if (*status == 0) *address = match->second.address;
  return tensile::cuda::Result::success;
}

}  // extern "C"
