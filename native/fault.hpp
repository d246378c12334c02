// What went wrong, in the terms of indb_tensile/errors.py: whose fault, one sentence, and the way out.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace tensile {

class Fault : public std::exception {
 public:
  // The class of indb_tensile/errors.py that a Python caller sees.
  // `lost`: the device, or this process's hold on it, is gone; the job can run again in another process.
  // `broken`: what this process computed took its hold on the device from it, and another attempt may do so again.
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

// The parts of a message, one after the other.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// A system call that failed: names the call, what it was for, and errno's own words.
[[noreturn]] void throw_system_fault(const char* call, const std::string& purpose, int error_number);

}  // namespace tensile
