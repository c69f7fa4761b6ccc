// The three products of the gate on tensor cores (gate_forward_cuda.cu, gate_input_cuda.cu,
// gate_weight_cuda.cu). x [T,h] and w [E,h] bf16, logits f32. router_gate_cuda.cu has them for any types and
// shapes with plain multiply-adds.
#pragma once

#include "kernels/cuda/bind.h"
#include "kernels/router/router_scratch.h"

namespace pleat::kernels {

CudaLaunch prepare_gate_forward(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias,
                                const Arg& logits, device::cuda::Lane& lane);
CudaLaunch prepare_gate_backward_input(const GateShape& shape, const Arg& dlogits, const Arg& w,
                                       const Arg& dx, device::cuda::Lane& lane);
// partial f32 [runs, E, h] gets the sums over runs of tokens.
struct GatePartials {
  int64_t runs = 1;
  std::function<void(float* partial)> launch;
};
GatePartials prepare_gate_backward_weight(const GateShape& shape, const Arg& dlogits, const Arg& x,
                                          device::cuda::Lane& lane);

}  // namespace pleat::kernels
