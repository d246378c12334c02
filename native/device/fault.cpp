#include "fault.hpp"

#include <system_error>

namespace tensile {

void throw_system_fault(const char* call, const std::string& purpose, int error_number) {
  throw Fault(Fault::Kind::device,
              text(purpose, ": ", call, " failed: ", std::generic_category().message(error_number)),
              "Look at the system's limits on memory, open files and threads.");
}

}  // namespace tensile
