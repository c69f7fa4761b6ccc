// How a kernel refuses numbers that the CPU kernel would throw on: the launch ends with cudaErrorAssert,
// which the next wait of the lane reports, and the message is printed. For broken invariants and exceeded
// budgets only, since the device cannot be used afterwards.
#pragma once

#include <cassert>

#define PLEAT_HALT_UNLESS(condition, message)                                    \
  do {                                                                           \
    if (!(condition)) __assert_fail(message, __FILE__, __LINE__, "CUDA kernel"); \
  } while (false)
