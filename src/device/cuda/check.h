// Turns error codes of the CUDA libraries into base::Error. Vendor headers; only for device/cuda and
// *_cuda.cu files.
#pragma once

#include <cuda_runtime.h>

#include "base/error.h"

#define PLEAT_CUDA(call)                                                                            \
  do {                                                                                              \
    if (const cudaError_t pleat_code = (call); pleat_code != cudaSuccess) [[unlikely]]              \
      ::pleat::base::fail_with(::pleat::base::ExitCode::Hardware, "CUDA: {} ({}) from {} at {}:{}", \
                               cudaGetErrorString(pleat_code), cudaGetErrorName(pleat_code), #call, \
                               __FILE__, __LINE__);                                                 \
  } while (false)

// After a launch: what the launch itself was refused for. Errors of the kernel's run come at the next wait.
#define PLEAT_CUDA_LAUNCHED() PLEAT_CUDA(cudaGetLastError())
