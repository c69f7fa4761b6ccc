// The three products of the gate on the GPU, for any types and shapes with plain multiply-adds, and for bf16
// on tensor cores (gate_forward_cuda.cu, gate_input_cuda.cu, gate_weight_cuda.cu). x [T,h] and w [E,h] of one
// type C, logits f32.
#pragma once

#include <type_traits>

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

struct GateShape {
  int64_t tokens, width, experts;
};

// Whether the tensor core kernels take these: bf16, rows of whole 16 bytes, at most kGateMmaExperts.
constexpr int64_t kGateMmaExperts = 256;
inline bool gate_on_tensor_cores(tensor::Dtype dtype, const GateShape& shape) {
  return dtype == tensor::Dtype::BF16 && shape.width % 8 == 0 && shape.experts <= kGateMmaExperts;
}

// Calls f with a std::integral_constant: the experts of a block's tile.
template <class F>
void with_expert_tile(int64_t experts, F&& f) {
  if (experts <= 32)
    f(std::integral_constant<int, 32>{});
  else if (experts <= 64)
    f(std::integral_constant<int, 64>{});
  else
    f(std::integral_constant<int, 128>{});
}

CudaLaunch prepare_gate_mma_forward(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias,
                                    const Arg& logits, device::cuda::Lane& lane);
CudaLaunch prepare_gate_mma_backward_input(const GateShape& shape, const Arg& dlogits, const Arg& w,
                                           const Arg& dx, device::cuda::Lane& lane);
// partial f32 [splits, E, h] gets the sums over equal runs of tokens, at the start of the lane's scratch.
using PartialLaunch = std::function<void(float* partial)>;
PartialLaunch prepare_gate_mma_backward_weight(const GateShape& shape, const Arg& dlogits, const Arg& x,
                                               int64_t splits, device::cuda::Lane& lane);

}  // namespace pleat::kernels
