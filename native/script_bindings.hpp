// The part of the Python module that binds script.hpp.
#pragma once

#include <nanobind/nanobind.h>

namespace tensile {

void bind_script(nanobind::module_& module);

}  // namespace tensile
