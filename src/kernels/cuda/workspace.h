// Scratch memory of the GPU kernels that is known without a GPU.
#pragma once

#include <cstdint>

namespace pleat::kernels {

constexpr int64_t kMatmulWorkspace = 64 << 20;  // what cuBLASLt may use, per lane

}  // namespace pleat::kernels
