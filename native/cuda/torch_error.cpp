#include "cuda/torch_error.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <typeinfo>

namespace tensile::cuda {
namespace {

// As c10::SourceLocation (c10/util/Exception.h, torch 2.11 to 2.13): passed by value, it is what the call looks like.
struct SourceLocation {
  const char* function;
  const char* file;
  std::uint32_t line;
};

using Construct = void (*)(void* object, SourceLocation where, std::string words);

// More than sizeof(c10::OutOfMemoryError), which is 128 in torch 2.13 and which nothing exports.
constexpr std::size_t room_bytes = 1024;

constexpr const char* own_constructor =
    "_ZN3c1016OutOfMemoryErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* base_constructor =
    "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

// The type as libc10.so exports it. Where its constructor is inherited, the base's makes the object and the table of
// virtual functions makes it the derived: that has no members of its own.
struct OutOfMemory {
  OutOfMemory() {
    void* library = ::dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;
    type = static_cast<std::type_info*>(::dlsym(library, "_ZTIN3c1016OutOfMemoryErrorE"));
    table = static_cast<void**>(::dlsym(library, "_ZTVN3c1016OutOfMemoryErrorE"));
    void* found = ::dlsym(library, own_constructor);
    if (found == nullptr) found = ::dlsym(library, base_constructor);
    construct = reinterpret_cast<Construct>(found);
  }

  bool is_known() const { return type != nullptr && table != nullptr && construct != nullptr; }

  std::type_info* type = nullptr;
  void** table = nullptr;
  Construct construct = nullptr;
};

// The first virtual function of a class with a virtual destructor that derives from std::exception is that destructor.
void destroy(void* object) {
  void** table = nullptr;
  std::memcpy(&table, object, sizeof(table));
  reinterpret_cast<void (*)(void*)>(table[0])(object);
}

}  // namespace

void throw_out_of_memory(const std::string& words) {
  const OutOfMemory found;  // asked each time: torch may be loaded later, and a refusal is rare
  if (!found.is_known()) return;
  void* object = abi::__cxa_allocate_exception(room_bytes);
  try {
    found.construct(object, {"tensile_cuda_allocate", "torch_allocator.cpp", 0}, words);
  } catch (...) {
    abi::__cxa_free_exception(object);
    throw;
  }
  void** const functions = found.table + 2;  // behind the offset to the top and the type
  std::memcpy(object, &functions, sizeof(functions));
  abi::__cxa_throw(object, found.type, &destroy);
}

}  // namespace tensile::cuda
