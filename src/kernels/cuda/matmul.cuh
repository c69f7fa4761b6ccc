// Dense products through cuBLASLt, with a measured choice of algorithm.
//
//   d[m, n] = op_a(a) op_b(b)^... in row-major terms:  d = A B (+ c) (+ bias over columns), A [m, k], B [k,
//   n]
//
// The choice is keyed by shapes, layouts, types, epilogue, device and library version: the same key takes the
// same algorithm everywhere in a run and after a resume. Bits are the same for the same device model, library
// and choice.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/bind.h"

namespace pleat::kernels::cuda {

struct Product {
  std::string_view what;  // for the table of choices: "linear forward"
  int64_t m = 0, n = 0, k = 0;
  // a is [m, k], or [k, m] when transposed; b is [k, n], or [n, k] when transposed; all row-major and dense.
  const Arg* a = nullptr;
  const Arg* b = nullptr;
  bool transpose_a = false, transpose_b = false;
  const Arg* d = nullptr;     // [m, n]; accumulated into when its use says so
  const Arg* c = nullptr;     // [m, n] of d's type, added; not together with an accumulating d
  const Arg* bias = nullptr;  // [n] of d's type
};

CudaLaunch matmul(const Product& product, device::cuda::Lane& lane);

// What was chosen so far in this process, a line each: key, algorithm, workspace, TFLOP/s when measured.
struct MatmulChoice {
  std::string key, algorithm;
  int64_t workspace = 0;
  double tflops = 0;  // 0: taken as recommended or read from a file
};
std::vector<MatmulChoice> matmul_choices();
// Choices of an earlier run: taken instead of measuring.
void use_matmul_choices(const std::vector<MatmulChoice>& choices);

}  // namespace pleat::kernels::cuda
