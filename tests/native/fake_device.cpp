// The fake driver's calls for devices, contexts, host memory, copies, streams and events.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "fake_state.hpp"

namespace fake_cuda {
namespace {

constexpr int device_count_limit = 8;

bool is_stream(StreamPointer stream) {
  Queue* queue = queue_of(stream);
  return stream == nullptr || queue == state().side_queue || state().streams.contains(queue);
}

FakeEvent* event_of(EventPointer event) {
  const auto match = state().events.find(reinterpret_cast<FakeEvent*>(event));
  return match == state().events.end() ? nullptr : match->second.get();
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
  if (match == values.end()) return entry.refuse(Result::invalid_value, "an unknown attribute");
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
    entry.refuse(Result::success, "the context is released before its resources");
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
                         state().violations.push_back("a copy ran after its memory was released");
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

}  // namespace

const Calls& device_calls() {
  static const Calls all{
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
  };
  return all;
}

}  // namespace fake_cuda
