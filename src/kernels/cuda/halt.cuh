// How a kernel refuses numbers that the CPU kernel would throw on: the launch ends with cudaErrorAssert,
// which the next wait of the lane reports, and the message is printed. For broken invariants and exceeded
// budgets only, since the device cannot be used afterwards.
#pragma once

#include <cuda_runtime.h>

// What assert() calls; with NDEBUG the headers do not declare it.
extern "C" __host__ __device__ __cudart_builtin__ void __assert_fail(const char* assertion, const char* file,
                                                                     unsigned int line,
                                                                     const char* function) noexcept;

#define PLEAT_HALT_UNLESS(condition, message)                                    \
  do {                                                                           \
    if (!(condition)) __assert_fail(message, __FILE__, __LINE__, "CUDA kernel"); \
  } while (false)
