// Binds script.hpp and private_arena.hpp to Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tensile {

void bind_script(nanobind::module_& module);

}  // namespace tensile
