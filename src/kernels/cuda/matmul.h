// Dense products through cuBLASLt, with a measured choice of algorithm.
//
//   d[m, n] = op_a(a) op_b(b)^... in row-major terms:  d = A B (+ c) (+ bias over columns), A [m, k], B [k,
//   n]
//
// The choice is keyed by shapes, layouts, types and epilogue (kernels/linear/matmul_choice.h): the same key
// takes the same algorithm everywhere in a run and after a resume. Bits are the same for the same device
// model, library and choice.
#pragma once

#include <string_view>

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

// In the scratch of `call`, which has kMatmulWorkspace (kernels/cuda/scratch.h).
CudaLaunch matmul(const Product& product, const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels::cuda
