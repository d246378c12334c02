// The exception of the native library. It carries a kind (a class of indb_tensile/errors.py), a one-sentence message
// and a hint that says how to resolve the error.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace tensile {

class Fault : public std::exception {
 public:
  // The class of indb_tensile/errors.py that a Python caller sees.
  // `lost`: the device, or this process's access to it, is gone; the job can run again in another process.
  // `broken`: this process's own computation destroyed its access to the device; another attempt may fail likewise.
  enum class Kind { device, memory, lost, broken, invariant };

  Fault(Kind kind, std::string message, std::string hint = {})
      : kind_(kind), message_(std::move(message)), hint_(std::move(hint)) {}

  Kind kind() const noexcept { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& hint() const noexcept { return hint_; }

 private:
  Kind kind_;
  std::string message_;
  std::string hint_;
};

// Concatenate the parts of a message.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Raise a device fault for a failed system call, naming the call, its purpose and the system's text for the error.
[[noreturn]] void throw_system_fault(const char* call, const std::string& purpose, int error_number);

}  // namespace tensile
