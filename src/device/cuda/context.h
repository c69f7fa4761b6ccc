// What a process takes of the GPU before it asks for any memory.
#pragma once

#include <cstdint>

namespace pleat::device::cuda {

// Memory of the GPU in use when this process has a context and the libraries' handles and has allocated
// nothing: asked again later, the first answer. What other processes hold is in it.
int64_t context_bytes();

}  // namespace pleat::device::cuda
