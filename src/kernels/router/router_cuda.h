// Prepare functions of the router's GPU kernels, one per row of router_cuda_bindings(). Contract: router.h.
// Logits and probabilities are f32; activations, the gate's weight and its gradients f32 or bf16.
#pragma once

#include "kernels/cuda/bind.h"

namespace pleat::kernels {

CudaLaunch prepare_jitter_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_jitter_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_force(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_gate_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_gate_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_gate_backward_weight(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_choose_forward(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_choose_backward_input(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_count(const Invocation& call, device::cuda::Lane& lane);
CudaLaunch prepare_router_aux(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
