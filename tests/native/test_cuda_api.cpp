// Compares the declarations of native/cuda/api.hpp with the headers of the CUDA toolkit. Compiling this file is the
// test; it is compiled where the headers are installed.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/api.hpp"

using namespace tensile::cuda;

namespace {

// Return whether the calling convention passes both types alike: both are pointers, or numbers of the same size.
template <typename Ours, typename Theirs>
constexpr bool passes_as() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    return std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>;
  } else {
    return (std::is_integral_v<Ours> || std::is_enum_v<Ours>) &&
           (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>) && sizeof(Ours) == sizeof(Theirs);
  }
}

template <typename... Ours>
struct Arguments {
  template <typename... Theirs>
  static constexpr bool pass_as(CUresult (*)(Theirs...)) {
    if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
      return (passes_as<Ours, Theirs>() && ...);
    } else {
      return false;
    }
  }
};

#define SAME_CALL(name, version, ...) \
  static_assert(Arguments<__VA_ARGS__>::pass_as(PFN_##name##_v##version{nullptr}), #name " is another call");
TENSILE_CUDA_CALLS(SAME_CALL)
#undef SAME_CALL

static_assert(passes_as<Result, CUresult>());
static_assert(std::is_same_v<Context, CUcontext> && std::is_same_v<StreamPointer, CUstream>);
static_assert(std::is_same_v<EventPointer, CUevent> && std::is_same_v<DeviceNumber, CUdevice>);
static_assert(std::is_same_v<Address, CUdeviceptr> && std::is_same_v<AllocationHandle, CUmemGenericAllocationHandle>);
static_assert(sizeof(CUuuid) == 16);

static_assert(sizeof(Location) == sizeof(CUmemLocation) && offsetof(Location, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
static_assert(offsetof(AllocationProperties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(AllocationProperties, location) == offsetof(CUmemAllocationProp, location));
static_assert(offsetof(AllocationProperties, windows_only) == offsetof(CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(AllocationProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
static_assert(offsetof(AccessDescription, flags) == offsetof(CUmemAccessDesc, flags));

template <typename Ours, typename Theirs>
constexpr bool equal(Ours ours, Theirs theirs) {
  return static_cast<long long>(ours) == static_cast<long long>(theirs);
}

static_assert(equal(Attribute::clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE));
static_assert(equal(Attribute::multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(equal(Attribute::memory_clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE));
static_assert(equal(Attribute::memory_bus_bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH));
static_assert(equal(Attribute::copy_engines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
static_assert(equal(Attribute::capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(equal(Attribute::capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(equal(Attribute::virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(equal(Attribute::descriptor_handles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(equal(LocationType::device, CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(equal(HandleType::none, CU_MEM_HANDLE_TYPE_NONE));
static_assert(equal(HandleType::file_descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(equal(AllocationType::pinned, CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(equal(Granularity::minimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
static_assert(equal(access_read_write, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(equal(schedule_blocking, CU_CTX_SCHED_BLOCKING_SYNC));
static_assert(equal(stream_non_blocking, CU_STREAM_NON_BLOCKING));
static_assert(equal(event_timed, CU_EVENT_DEFAULT) && equal(event_untimed, CU_EVENT_DISABLE_TIMING));
static_assert(equal(register_portable, CU_MEMHOSTREGISTER_PORTABLE));
static_assert(equal(search_legacy_stream, CU_GET_PROC_ADDRESS_LEGACY_STREAM));
static_assert(equal(0, CU_GET_PROC_ADDRESS_SUCCESS) && sizeof(CUdriverProcAddressQueryResult) == sizeof(int));
static_assert(passes_as<std::uint64_t, cuuint64_t>());

static_assert(equal(CaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE));
static_assert(equal(CaptureStatus::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED));
#define SAME_RESULT(ours, theirs) static_assert(equal(Result::ours, CUDA_##theirs));
SAME_RESULT(success, SUCCESS)
SAME_RESULT(invalid_value, ERROR_INVALID_VALUE)
SAME_RESULT(out_of_memory, ERROR_OUT_OF_MEMORY)
SAME_RESULT(not_initialized, ERROR_NOT_INITIALIZED)
SAME_RESULT(deinitialized, ERROR_DEINITIALIZED)
SAME_RESULT(stub_library, ERROR_STUB_LIBRARY)
SAME_RESULT(device_unavailable, ERROR_DEVICE_UNAVAILABLE)
SAME_RESULT(no_device, ERROR_NO_DEVICE)
SAME_RESULT(invalid_device, ERROR_INVALID_DEVICE)
SAME_RESULT(invalid_context, ERROR_INVALID_CONTEXT)
SAME_RESULT(ecc_uncorrectable, ERROR_ECC_UNCORRECTABLE)
SAME_RESULT(nvlink_uncorrectable, ERROR_NVLINK_UNCORRECTABLE)
SAME_RESULT(operating_system, ERROR_OPERATING_SYSTEM)
SAME_RESULT(invalid_handle, ERROR_INVALID_HANDLE)
SAME_RESULT(not_ready, ERROR_NOT_READY)
SAME_RESULT(illegal_address, ERROR_ILLEGAL_ADDRESS)
SAME_RESULT(launch_timeout, ERROR_LAUNCH_TIMEOUT)
SAME_RESULT(primary_context_active, ERROR_PRIMARY_CONTEXT_ACTIVE)
SAME_RESULT(context_is_destroyed, ERROR_CONTEXT_IS_DESTROYED)
SAME_RESULT(device_assert, ERROR_ASSERT)
SAME_RESULT(host_memory_already_registered, ERROR_HOST_MEMORY_ALREADY_REGISTERED)
SAME_RESULT(host_memory_not_registered, ERROR_HOST_MEMORY_NOT_REGISTERED)
SAME_RESULT(hardware_stack_error, ERROR_HARDWARE_STACK_ERROR)
SAME_RESULT(illegal_instruction, ERROR_ILLEGAL_INSTRUCTION)
SAME_RESULT(misaligned_address, ERROR_MISALIGNED_ADDRESS)
SAME_RESULT(invalid_address_space, ERROR_INVALID_ADDRESS_SPACE)
SAME_RESULT(invalid_pc, ERROR_INVALID_PC)
SAME_RESULT(launch_failed, ERROR_LAUNCH_FAILED)
SAME_RESULT(not_permitted, ERROR_NOT_PERMITTED)
SAME_RESULT(not_supported, ERROR_NOT_SUPPORTED)
SAME_RESULT(system_not_ready, ERROR_SYSTEM_NOT_READY)
SAME_RESULT(system_driver_mismatch, ERROR_SYSTEM_DRIVER_MISMATCH)
SAME_RESULT(mps_connection_failed, ERROR_MPS_CONNECTION_FAILED)
SAME_RESULT(mps_rpc_failure, ERROR_MPS_RPC_FAILURE)
SAME_RESULT(mps_server_not_ready, ERROR_MPS_SERVER_NOT_READY)
SAME_RESULT(mps_client_terminated, ERROR_MPS_CLIENT_TERMINATED)
SAME_RESULT(capture_unsupported, ERROR_STREAM_CAPTURE_UNSUPPORTED)
SAME_RESULT(capture_invalidated, ERROR_STREAM_CAPTURE_INVALIDATED)
SAME_RESULT(capture_isolation, ERROR_STREAM_CAPTURE_ISOLATION)
SAME_RESULT(captured_event, ERROR_CAPTURED_EVENT)
SAME_RESULT(external_device, ERROR_EXTERNAL_DEVICE)
SAME_RESULT(unknown, ERROR_UNKNOWN)
#if CUDA_VERSION >= 12080
SAME_RESULT(contained, ERROR_CONTAINED)
SAME_RESULT(tensor_memory_leak, ERROR_TENSOR_MEMORY_LEAK)
#endif
#undef SAME_RESULT

}  // namespace
