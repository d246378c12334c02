// Throws torch's own out-of-memory error without linking to torch.
//
// torch's callers of cuDNN try another algorithm if a workspace is refused with c10::OutOfMemoryError, and with no
// other exception (aten/src/ATen/native/cudnn/Conv_v8.cpp). libc10.so, which is loaded in every process that computes
// with torch, exports the type, its constructor and its table of virtual functions. This code looks them up by name
// and creates the object as the Itanium C++ ABI prescribes. If a name is missing, nothing is thrown.
#pragma once

#include <string>

namespace tensile::cuda {

// Throw c10::OutOfMemoryError with these words; return if this process does not have the type.
void throw_out_of_memory(const std::string& words);

}  // namespace tensile::cuda
