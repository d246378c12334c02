#include "cuda/driver.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace tensile::cuda {
namespace {

constexpr const char* no_driver_hint =
    "Install NVIDIA's driver, or start the container with access to it; without a GPU, set device to cpu.";
constexpr const char* new_driver_hint = "Install NVIDIA's driver 525.60.13 or newer.";
constexpr const char* broken_driver_hint = "Install NVIDIA's driver again, and one version of it only.";

// Results that mean that the device or its driver is missing or defective, whatever this process did. They include
// hardware errors, even those that the documentation attributes to a single process.
constexpr std::array lost_results{
    Result::deinitialized,
    Result::device_unavailable,
    Result::no_device,
    Result::ecc_uncorrectable,
    Result::nvlink_uncorrectable,
    Result::contained,
    Result::system_not_ready,
    Result::mps_connection_failed,
    Result::mps_rpc_failure,
    Result::mps_server_not_ready,
    Result::mps_client_terminated,
    Result::external_device,
    Result::unknown,
};

// Results that mean that a kernel of this process made an error and its context can no longer be used. The
// documentation says of each that the process is left in an inconsistent state, and must be ended and started again
// to use CUDA.
constexpr std::array broken_results{
    Result::illegal_address,    Result::launch_timeout,        Result::context_is_destroyed,
    Result::device_assert,      Result::hardware_stack_error,  Result::illegal_instruction,
    Result::misaligned_address, Result::invalid_address_space, Result::invalid_pc,
    Result::launch_failed,      Result::tensor_memory_leak,
};

std::string spelled(int version) { return text(version / 1000, ".", version % 1000 / 10); }

const char* hint_for(Fault::Kind kind) {
  switch (kind) {
    case Fault::Kind::memory:
      return "Lower the device's budget or the host pool's limit, or end what else uses this memory.";
    case Fault::Kind::lost:
      return "The job runs again in another process; nvidia-smi and the kernel's log (Xid) show what happened to the "
             "device.";
    case Fault::Kind::broken:
      return "Other jobs continue. If it happens again, a kernel of this network is at fault: train it under "
             "compute-sanitizer, or on the emulated device, and check its inputs.";
    default:
      return "Report this with the version of NVIDIA's driver (nvidia-smi).";
  }
}

template <std::size_t count>
bool contains(const std::array<Result, count>& results, Result result) {
  return std::find(results.begin(), results.end(), result) != results.end();
}

Fault::Kind kind_of(Result result) {
  if (result == Result::out_of_memory) return Fault::Kind::memory;
  if (contains(lost_results, result)) return Fault::Kind::lost;
  return contains(broken_results, result) ? Fault::Kind::broken : Fault::Kind::device;
}

Absent no_library(const char* library) {
  const char* error = ::dlerror();
  const std::string words = error == nullptr ? "unknown error" : error;
  const bool missing = words.find("No such file") != std::string::npos;
  return {missing ? Absent::Why::no_driver : Absent::Why::broken_driver,
          text("no CUDA driver: loading ", library, " failed: ", words),
          missing ? no_driver_hint : broken_driver_hint};
}

}  // namespace

class Driver::Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {}

  explicit operator bool() const noexcept { return handle_ != nullptr; }

  template <typename Function>
  bool find(const char* symbol, Function& function) const {
    void* address = ::dlsym(handle_, symbol);
    static_assert(sizeof(function) == sizeof(address));
    std::memcpy(&function, &address, sizeof(function));
    return address != nullptr;
  }

 private:
  void* handle_;
};

std::variant<std::unique_ptr<const Driver>, Absent> Driver::load(const char* library) {
  static const int watching = ::pthread_atfork(nullptr, nullptr, [] { after_fork = true; });
  static_cast<void>(watching);
  const Library opened(library);
  if (!opened) return no_library(library);
  GetDriverVersion get_version = nullptr;
  int version = 0;
  if (!opened.find("cuDriverGetVersion", get_version) || get_version(&version) != Result::success) {
    return Absent{Absent::Why::broken_driver, text(library, " does not say its version (cuDriverGetVersion)"),
                  broken_driver_hint};
  }
  if (version < needed_version) {
    return Absent{
        Absent::Why::old_driver,
        text("the driver supports CUDA ", spelled(version), ", and ", spelled(needed_version), " is needed"),
        new_driver_hint};
  }
  std::unique_ptr<Driver> driver(new Driver());
  driver->version_ = version;
  const std::string missing = driver->resolve(opened);
  if (!missing.empty()) {
    return Absent{Absent::Why::broken_driver,
                  text(library, " supports CUDA ", spelled(version), " and lacks ", missing), broken_driver_hint};
  }
  int count = 0;
  const char* call = driver->cuInit.name();
  Result result = driver->cuInit.answer(0);
  if (result == Result::success) {
    call = driver->cuDeviceGetCount.name();
    result = driver->cuDeviceGetCount.answer(&count);
  }
  if (result == Result::no_device || (result == Result::success && count == 0)) {
    return Absent{Absent::Why::no_device, "the CUDA driver sees no GPU",
                  "Look at nvidia-smi and at CUDA_VISIBLE_DEVICES; without a GPU, set device to cpu."};
  }
  if (result == Result::stub_library) {
    return Absent{Absent::Why::broken_driver, text(library, " is the stub that the CUDA toolkit links to, no driver"),
                  "Take the toolkit's folder 'stubs' out of LD_LIBRARY_PATH."};
  }
  if (result != Result::success) {
    return Absent{Absent::Why::refused, text("the CUDA driver refuses: ", call, " failed: ", driver->words(result)),
                  "Look at nvidia-smi; a process that was forked after its parent used CUDA cannot use it."};
  }
  return std::unique_ptr<const Driver>(std::move(driver));
}

// Look up all calls. Returns the name of the first that is missing, or an empty string.
std::string Driver::resolve(const Library& library) {
  GetProcAddress get = nullptr;
  if (!library.find("cuGetProcAddress_v2", get)) return "cuGetProcAddress_v2";
  if (!library.find("cuGetErrorName", error_name_)) return "cuGetErrorName";
  if (!library.find("cuGetErrorString", error_string_)) return "cuGetErrorString";
  const auto missing = [get](auto& call, int version) {
    void* address = nullptr;
    int status = 0;
    const Result result = get(call.name_, &address, version, search_legacy_stream, &status);
    std::memcpy(&call.pointer_, &address, sizeof(address));
    return result != Result::success || status != 0 || address == nullptr;
  };
#define TENSILE_CUDA_RESOLVE(name, version, ...) \
  if (missing(name, version)) return text(#name, " of CUDA ", spelled(version));
  TENSILE_CUDA_CALLS(TENSILE_CUDA_RESOLVE)
#undef TENSILE_CUDA_RESOLVE
  return {};
}

std::string Driver::words(Result result) const {
  if (after_fork) return "the device was opened before this process was forked; open it in the process that uses it";
  const char* name = nullptr;
  const char* string = nullptr;
  if (error_name_(result, &name) != Result::success || name == nullptr) {
    return text("error ", static_cast<int>(result), ", which this driver has no name for");
  }
  if (error_string_(result, &string) != Result::success || string == nullptr) string = "no words for it";
  return text(name, " (", string, ")");
}

void Driver::fail(std::string_view purpose, const char* call, Result result) const {
  const Fault::Kind kind = kind_of(result);
  throw Fault(kind, text(purpose, ": ", call, " failed: ", words(result)), hint_for(kind));
}

const std::variant<std::unique_ptr<const Driver>, Absent>& process_driver() {
  static const auto loaded = Driver::load();
  return loaded;
}

const Driver& required_driver() {
  const auto& loaded = process_driver();
  if (const auto* absent = std::get_if<Absent>(&loaded)) {
    throw Fault(Fault::Kind::device, absent->reason, absent->hint);
  }
  return *std::get<std::unique_ptr<const Driver>>(loaded);
}

}  // namespace tensile::cuda
