#include <fmt/format.h>

#include "kernels/cuda/bind.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/paths.h"

namespace pleat::kernels {

CudaPrepare find_cuda_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows :
       {embedding_cuda_bindings(), linear_cuda_bindings(), rmsnorm_cuda_bindings(), rope_cuda_bindings(),
        mla_cuda_bindings(), attention_cuda_bindings(), swiglu_cuda_bindings(), sigmoid_gate_cuda_bindings(),
        router_cuda_bindings(), dispatch_cuda_bindings(), grouped_linear_cuda_bindings(),
        rows_cuda_bindings(), shares_cuda_bindings(), cross_entropy_cuda_bindings(), mtp_cuda_bindings(),
        token_score_cuda_bindings(), optimizer_cuda_bindings()})
    for (const CudaBinding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.prepare;
  return nullptr;
}

std::vector<std::string> cuda_choices() {
  std::vector<std::string> out;
  for (const MatmulChoice& c : matmul_choices())
    out.push_back(
        fmt::format("{} {}, sums in f32: cuBLASLt, {}", c.what, text_of(c.key),
                    c.tflops > 0 ? fmt::format("{:.0f} TFLOP/s when chosen", c.tflops) : "as it recommends"));
  for (std::string& line : cuda::paths_taken()) out.push_back(std::move(line));
  return out;
}

}  // namespace pleat::kernels
