// Our own declarations of the part of the CUDA driver API that this library uses, so that the build needs neither
// cuda.h nor a CUDA library. Each call is listed with the CUDA version that introduced its prototype and is looked up
// with that version (cuGetProcAddress), because the meaning of a plain symbol differs between versions. Source: the
// CUDA driver API reference, 12.0 to 13.0. tests/native/test_cuda_api.cpp compares these declarations with cuda.h
// where it exists.
#pragma once

#include <cstddef>
#include <cstdint>

// The driver's names of the types behind its handles.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;

namespace tensile::cuda {

using Context = CUctx_st*;
using StreamPointer = CUstream_st*;
using EventPointer = CUevent_st*;
using DeviceNumber = int;
using Address = unsigned long long;
using AllocationHandle = unsigned long long;

// The values of CUresult that this library distinguishes.
enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  stub_library = 34,
  device_unavailable = 46,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  ecc_uncorrectable = 214,
  nvlink_uncorrectable = 220,
  contained = 226,
  operating_system = 304,
  invalid_handle = 400,
  not_ready = 600,
  illegal_address = 700,
  launch_timeout = 702,
  primary_context_active = 708,
  context_is_destroyed = 709,
  device_assert = 710,
  host_memory_already_registered = 712,
  host_memory_not_registered = 713,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_address_space = 717,
  invalid_pc = 718,
  launch_failed = 719,
  tensor_memory_leak = 721,
  not_permitted = 800,
  not_supported = 801,
  system_not_ready = 802,
  system_driver_mismatch = 803,
  mps_connection_failed = 805,
  mps_rpc_failure = 806,
  mps_server_not_ready = 807,
  mps_client_terminated = 810,
  capture_unsupported = 900,
  capture_invalidated = 901,
  capture_isolation = 905,
  captured_event = 907,
  external_device = 911,
  unknown = 999,
};

enum class Attribute : int {
  clock_khz = 13,
  multiprocessors = 16,
  memory_clock_khz = 36,
  memory_bus_bits = 37,
  copy_engines = 40,
  capability_major = 75,
  capability_minor = 76,
  virtual_memory = 102,
  descriptor_handles = 103,
};

enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };
enum class LocationType : int { device = 1 };
enum class HandleType : int { none = 0, file_descriptor = 1 };
enum class AllocationType : int { pinned = 1 };
enum class Granularity : int { minimum = 0 };

struct Location {
  LocationType type;
  int id;
};

struct AllocationProperties {
  AllocationType type;
  HandleType handle_types;
  Location location;
  void* windows_only;
  struct {
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};

struct AccessDescription {
  Location location;
  int flags;
};

inline constexpr int access_read_write = 3;
inline constexpr unsigned int schedule_blocking = 4;  // a thread sleeps while it waits for the device
inline constexpr unsigned int stream_non_blocking = 1;
inline constexpr unsigned int event_timed = 0;
inline constexpr unsigned int event_untimed = 2;
inline constexpr unsigned int register_portable = 1;      // pinned for every context of the process
inline constexpr std::uint64_t search_legacy_stream = 1;  // stream 0 means the legacy default stream

// CALL(name, version of this prototype, types of the arguments...)
#define TENSILE_CUDA_CALLS(CALL)                                                                            \
  CALL(cuInit, 2000, unsigned int)                                                                          \
  CALL(cuDeviceGetCount, 2000, int*)                                                                        \
  CALL(cuDeviceGet, 2000, DeviceNumber*, int)                                                               \
  CALL(cuDeviceGetName, 2000, char*, int, DeviceNumber)                                                     \
  CALL(cuDeviceTotalMem, 3020, std::size_t*, DeviceNumber)                                                  \
  CALL(cuDeviceGetAttribute, 2000, int*, Attribute, DeviceNumber)                                           \
  CALL(cuDeviceGetUuid, 11040, unsigned char(*)[16], DeviceNumber)                                          \
  CALL(cuDevicePrimaryCtxSetFlags, 11000, DeviceNumber, unsigned int)                                       \
  CALL(cuDevicePrimaryCtxRetain, 7000, Context*, DeviceNumber)                                              \
  CALL(cuDevicePrimaryCtxRelease, 11000, DeviceNumber)                                                      \
  CALL(cuCtxPushCurrent, 4000, Context)                                                                     \
  CALL(cuCtxPopCurrent, 4000, Context*)                                                                     \
  CALL(cuCtxSynchronize, 2000)                                                                              \
  CALL(cuMemAlloc, 3020, Address*, std::size_t)                                                             \
  CALL(cuMemFree, 3020, Address)                                                                            \
  CALL(cuMemHostRegister, 6050, void*, std::size_t, unsigned int)                                           \
  CALL(cuMemHostUnregister, 4000, void*)                                                                    \
  CALL(cuMemcpyHtoDAsync, 3020, Address, const void*, std::size_t, StreamPointer)                           \
  CALL(cuMemcpyDtoHAsync, 3020, void*, Address, std::size_t, StreamPointer)                                 \
  CALL(cuMemsetD8Async, 3020, Address, unsigned char, std::size_t, StreamPointer)                           \
  CALL(cuStreamCreate, 2000, StreamPointer*, unsigned int)                                                  \
  CALL(cuStreamDestroy, 4000, StreamPointer)                                                                \
  CALL(cuStreamWaitEvent, 3020, StreamPointer, EventPointer, unsigned int)                                  \
  CALL(cuStreamSynchronize, 2000, StreamPointer)                                                            \
  CALL(cuStreamIsCapturing, 10000, StreamPointer, CaptureStatus*)                                           \
  CALL(cuEventCreate, 2000, EventPointer*, unsigned int)                                                    \
  CALL(cuEventDestroy, 4000, EventPointer)                                                                  \
  CALL(cuEventRecord, 2000, EventPointer, StreamPointer)                                                    \
  CALL(cuEventQuery, 2000, EventPointer)                                                                    \
  CALL(cuEventElapsedTime, 2000, float*, EventPointer, EventPointer)                                        \
  CALL(cuMemGetAllocationGranularity, 10020, std::size_t*, const AllocationProperties*, Granularity)        \
  CALL(cuMemAddressReserve, 10020, Address*, std::size_t, std::size_t, Address, unsigned long long)         \
  CALL(cuMemAddressFree, 10020, Address, std::size_t)                                                       \
  CALL(cuMemCreate, 10020, AllocationHandle*, std::size_t, const AllocationProperties*, unsigned long long) \
  CALL(cuMemRelease, 10020, AllocationHandle)                                                               \
  CALL(cuMemMap, 10020, Address, std::size_t, std::size_t, AllocationHandle, unsigned long long)            \
  CALL(cuMemUnmap, 10020, Address, std::size_t)                                                             \
  CALL(cuMemSetAccess, 10020, Address, std::size_t, const AccessDescription*, std::size_t)                  \
  CALL(cuMemRetainAllocationHandle, 11000, AllocationHandle*, void*)                                        \
  CALL(cuMemExportToShareableHandle, 10020, void*, AllocationHandle, HandleType, unsigned long long)        \
  CALL(cuMemImportFromShareableHandle, 10020, AllocationHandle*, void*, HandleType)

// The calls that are looked up by plain symbols, whose meaning never changed. They are needed to look up the others.
using GetDriverVersion = Result (*)(int*);
using GetErrorText = Result (*)(Result, const char**);
using GetProcAddress = Result (*)(const char*, void**, int, std::uint64_t, int*);  // cuGetProcAddress_v2, 12.0

}  // namespace tensile::cuda
