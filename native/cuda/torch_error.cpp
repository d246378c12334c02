#include "cuda/torch_error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <typeinfo>

namespace tensile::cuda {
namespace {

// Has the layout of c10::SourceLocation (c10/util/Exception.h, torch 2.11 to 2.13), which is passed by value and so
// determines the calling convention.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

using Construct = void (*)(void* object, SourceLocation where, std::string words);

// More than sizeof(c10::OutOfMemoryError), which is 128 in torch 2.13 and cannot be looked up.
constexpr std::size_t room_bytes = 1024;

constexpr const char* own_constructor =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* base_constructor =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

// The libraries that may export the type. Up to torch 2.11 (and possibly later) it is defined in a header, and each
// library that throws or catches it has a copy; libc10.so has none. The copies are equal: types are compared by name.
constexpr std::array libraries{"libc10.so", "libc10_cuda.so", "libtorch_cuda.so", "libtorch_python.so"};

// The type as torch exports it. If its constructor is inherited, the base class's constructor creates the object, and
// replacing the table of virtual functions turns it into the derived class, which has no members of its own.
struct OutOfMemory {
  OutOfMemory() {
    for (const char* name : libraries) {
      void* library = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
      if (library == nullptr) continue;
      type = static_cast<std::type_info*>(::dlsym(library, "_ZTIN3c1016OutOfMemoryErrorE"));
      table = static_cast<void**>(::dlsym(library, "_ZTVN3c1016OutOfMemoryErrorE"));
      void* constructor = ::dlsym(library, own_constructor);
      if (constructor == nullptr) constructor = ::dlsym(library, base_constructor);
      construct = reinterpret_cast<Construct>(constructor);
      if (is_known()) return;
    }
  }

  bool is_known() const { return type != nullptr && table != nullptr && construct != nullptr; }

  std::type_info* type = nullptr;
  void** table = nullptr;
  Construct construct = nullptr;
};

// Destroy the object through its first virtual function: that is the destructor in a class that derives from
// std::exception.
void destroy(void* object) {
  void** table = nullptr;
  std::memcpy(&table, object, sizeof(table));
  reinterpret_cast<void (*)(void*)>(table[0])(object);
}

}  // namespace

void throw_out_of_memory(const std::string& words) {
  const OutOfMemory type;  // looked up each time: torch may be loaded later, and refusals are rare
  if (!type.is_known()) return;
  void* object = abi::__cxa_allocate_exception(room_bytes);
  try {
    type.construct(object, {"tensile_cuda_allocate", "torch_allocator.cpp", 0}, words);
  } catch (...) {
    abi::__cxa_free_exception(object);
    throw;
  }
  void** const functions = type.table + 2;  // the functions follow the offset to the top and the type
  std::memcpy(object, &functions, sizeof(functions));
  abi::__cxa_throw(object, type.type, &destroy);
}

}  // namespace tensile::cuda
