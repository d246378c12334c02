// Torch's own error for memory that is not there, thrown without linking to torch.
//
// cuDNN's callers in torch try another algorithm where a workspace is refused by c10::OutOfMemoryError, and by nothing
// else (aten/src/ATen/native/cudnn/Conv_v8.cpp). The type, its constructor and its table of virtual functions are
// exported by libc10.so, which a process that computes with torch has loaded; they are found by name, and the object
// is made as the Itanium C++ ABI prescribes. Where a name is missing nothing is thrown.
#pragma once

#include <string>

namespace tensile::cuda {

// Throws c10::OutOfMemoryError with these words; returns where this process has no such type.
void throw_out_of_memory(const std::string& words);

}  // namespace tensile::cuda
