// The CUDA driver, loaded when asked for: nothing here is linked to it, and a machine without one is told so.
//
// Not yet run on a GPU: what is known of the calls is their documentation, and what a test double checks of it
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

// Set in a child that was forked after the driver had been loaded: it must not touch it.
inline std::atomic<bool> after_fork{false};

class Driver;

// One call of the driver. Called, it is checked and raises a fault that names it; `answer` is for those whose
// results are more than success and failure, and for destructors, which never throw.
template <typename... Arguments>
class Call {
 public:
  Call(const Driver& driver, const char* name) noexcept : driver_(driver), name_(name) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // `purpose` is the subject of the fault's sentence: "copying to the host".
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

// Why there is no device to be used. Expected on many machines, so a value.
struct Absent {
  enum class Why { no_driver, broken_driver, old_driver, no_device, refused };

  Why why;
  std::string reason;
  std::string hint;
};

// Stays loaded for the life of the process: unloading it while its threads run is not provided for.
class Driver {
 public:
  static std::variant<std::unique_ptr<const Driver>, Absent> load(const char* library = driver_library);

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  int version() const noexcept { return version_; }

  // The name that the driver gives a result, and its own words for it.
  std::string words(Result result) const;

  // Raise the fault for a call that failed: a memory fault, a lost device, a computation that broke, or another
  // refusal.
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

// The driver of this process, loaded at the first call; the others get the same answer.
const std::variant<std::unique_ptr<const Driver>, Absent>& process_driver();

// The same for who cannot go on without: raises a device fault that says why there is none.
const Driver& required_driver();

}  // namespace tensile::cuda
