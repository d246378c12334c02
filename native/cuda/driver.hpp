// The CUDA driver, loaded on demand: this library does not link to the driver, and on a machine without one `load`
// returns the reason.
//
// This code has not run on a GPU yet: the calls follow the driver's documentation, and a test double checks them
// (tests/native/fake_cuda.cpp).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "cuda/api.hpp"
#include "fault.hpp"

namespace tensile::cuda {

inline constexpr const char* driver_library = "libcuda.so.1";
inline constexpr int needed_version = 12000;  // CUDA 12.0: cuGetProcAddress_v2; torch's oldest CUDA build needs 12.x

// True in a child that was forked after the driver had been loaded; the child must not use the driver.
inline std::atomic<bool> after_fork{false};

class Driver;

// One function of the driver. The call operator checks the result and raises a fault that names the function.
// `answer` returns the result instead: for functions whose results are more than success and failure, and for
// destructors, which never throw.
template <typename... Arguments>
class Call {
 public:
  Call(const Driver& driver, const char* name) noexcept : driver_(driver), name_(name) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // `purpose` begins the fault's message, such as "copying to the host".
  void operator()(std::string_view purpose, Arguments... arguments) const;
  Result answer(Arguments... arguments) const noexcept {
    return after_fork.load(std::memory_order_relaxed) ? Result::not_initialized : pointer_(arguments...);
  }
  const char* name() const noexcept { return name_; }

 private:
  friend class Driver;

  const Driver& driver_;
  const char* name_;
  Result (*pointer_)(Arguments...) = nullptr;
};

// The reason why no device can be used. It is a value and not a fault, because many machines have no GPU.
struct Absent {
  enum class Why { no_driver, broken_driver, old_driver, no_device, refused };

  Why why;
  std::string reason;
  std::string hint;
};

// The loaded driver. It stays loaded until the process ends, because it cannot be unloaded safely while its threads
// run.
class Driver {
 public:
  static std::variant<std::unique_ptr<const Driver>, Absent> load(const char* library = driver_library);

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  int version() const noexcept { return version_; }

  // Return the driver's name and description of a result.
  std::string words(Result result) const;

  // Raise the fault for a call that failed. Its kind is `memory`, `lost`, `broken`, or `device` for all other
  // results.
  [[noreturn]] void fail(std::string_view purpose, const char* call, Result result) const;

#define TENSILE_CUDA_MEMBER(name, version, ...) Call<__VA_ARGS__> name{*this, #name};
  TENSILE_CUDA_CALLS(TENSILE_CUDA_MEMBER)
#undef TENSILE_CUDA_MEMBER

 private:
  class Library;

  Driver() = default;
  std::string resolve(const Library& library);

  int version_ = 0;
  GetErrorText error_name_ = nullptr;
  GetErrorText error_string_ = nullptr;
};

template <typename... Arguments>
void Call<Arguments...>::operator()(std::string_view purpose, Arguments... arguments) const {
  const Result result = answer(arguments...);
  if (result != Result::success) driver_.fail(purpose, name_, result);
}

// Return the driver of this process. The first call loads it; later calls return the same result.
const std::variant<std::unique_ptr<const Driver>, Absent>& process_driver();

// Return the driver of this process, or raise a device fault with the reason why there is none.
const Driver& required_driver();

}  // namespace tensile::cuda
