// Runs one kernel on the GPU and its specification, the CPU kernel in float64, on the same numbers, and
// compares every output. Tests are skipped, with the reason, where there is no GPU.
#pragma once

#include <gtest/gtest.h>
#include <functional>

#include <string>
#include <vector>

#include "kernels/kernel_support.h"

namespace pleat::kernels::testing {

// GTEST_SKIP() unless a GPU of compute capability 9.0 is there.
#define PLEAT_NEEDS_GPU() \
  if (const std::string why = ::pleat::kernels::testing::no_gpu(); !why.empty()) GTEST_SKIP() << why
std::string no_gpu();

// Whether every case is launched once instead of four times, and some sizes that take other sizes' way are
// left out (PLEAT_TEST_ONCE, set by tools/sanitize_gpu.py): a sanitizer sees all it can the first time, and
// is slow.
bool only_once();

struct Compare {
  // Allowed ||gpu - cpu|| / ||cpu|| of an output (absolute below a norm of 1e-6), and the largest single
  // difference as a multiple of the output's largest magnitude.
  double norm = 0, element = 0;
};
// What rounding each number of `dtype` once and `length` additions in float cost at most, with a margin.
Compare bound(tensor::Dtype dtype, int64_t length = 1);

// Every input is given to the GPU as it is, and to the CPU as float64 (floats; those the contract fixes as
// f32 stay). Outputs that are overwritten start as NaN on the GPU. Integer outputs must be equal. Runs twice:
// the bits must be the same. Afterwards the tensors hold the GPU's results.
// Where the GPU alone has a kernel, `parts` are the CPU kernels that do the same one after the other.
struct Part {
  program::KernelKind kind;
  program::Phase phase;
  std::vector<size_t> args;  // which of the arguments, in the part's order
};
void expect_agrees(program::KernelKind kind, program::Phase phase, const std::vector<Pass>& args,
                   const program::AttrSet& attrs, Compare allowed, const std::vector<Part>& parts = {});

// Only the GPU: for tests that compare in their own way.
void call_cuda(program::KernelKind kind, program::Phase phase, const std::vector<Pass>& args,
               const program::AttrSet& attrs = {}, const std::function<void()>& when_prepared = {});

}  // namespace pleat::kernels::testing
