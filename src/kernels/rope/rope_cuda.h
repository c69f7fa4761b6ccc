// Gradients of qk_rope on the GPU, for both of its rows of program/ops.def: each by itself, and both at once.
#pragma once

#include "kernels/cuda/bind.h"
#include "kernels/rope/rope_heads.cuh"
#include "kernels/rope/rope_sums.h"

namespace pleat::kernels {

// The shape and what every gradient reads.
template <class T, class Args>
cuda::RopeArgs<T> rope_gradient_args(const RopeShape& shape, const Args& args) {
  cuda::RopeArgs<T> p = cuda::rope_args<T>(shape, args.dout.dim(0));
  p.from = args.dout.template as<T>(), p.cos_sin = args.cos_sin.template as<float>();
  p.x = args.qkv.template as<T>(), p.rstd = args.rstd.template as<float>();
  return p;
}
// What dqkv takes beside it.
template <class T, class Args>
cuda::RopeArgs<T> rope_input_args(const RopeShape& shape, const Args& args) {
  cuda::RopeArgs<T> p = rope_gradient_args<T>(shape, args);
  p.q_norm = args.q_norm.template as<T>(), p.k_norm = args.k_norm.template as<T>();
  p.to = args.dqkv.template as<T>();
  return p;
}

// dqkv, and the sums for the norms' weights. T: float or bf16.
template <class T>
CudaLaunch launch_rope_input(const RopeShape& shape, const cuda::RopeArgs<T>& p, device::cuda::Lane& lane);
template <class T>
CudaLaunch launch_rope_weight(const RopeShape& shape, const cuda::RopeArgs<T>& p, const Arg& dq_norm,
                              const Arg& dk_norm, const Invocation& call, device::cuda::Lane& lane);

// Both in one read of dout and qkv where a lane can hold its part of a head, else one after the other. Sums
// over rows are cut by the shape alone.
CudaLaunch prepare_rope_backward(const Invocation& call, device::cuda::Lane& lane);

}  // namespace pleat::kernels
