#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaPrepare find_cuda_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows :
       {embedding_cuda_bindings(), linear_cuda_bindings(), rmsnorm_cuda_bindings(), rope_cuda_bindings(),
        mla_cuda_bindings(), attention_cuda_bindings(), swiglu_cuda_bindings(), sigmoid_gate_cuda_bindings(),
        router_cuda_bindings(), dispatch_cuda_bindings(), grouped_linear_cuda_bindings(),
        rows_cuda_bindings(), cross_entropy_cuda_bindings(), mtp_cuda_bindings(), token_score_cuda_bindings(),
        optimizer_cuda_bindings()})
    for (const CudaBinding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.prepare;
  return nullptr;
}

}  // namespace pleat::kernels
