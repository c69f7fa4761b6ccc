// The arithmetic of AdamW (kernels/optimizer/optimizer.h) on the GPU, for the files that differ in how weights and states
// are kept. The scalars of the step, which need double precision, are made once by a thread of their own.
#pragma once

#include "device/cuda/cuda.h"
#include "kernels/optimizer/contract.h"

namespace pleat::kernels::cuda {

struct Attributes {
  double beta1, beta2, eps, weight_decay, lr_mult;
};
struct Scalars {
  float gradient_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, decay, rate, inverse_root2, eps;
};

// x^n by squaring; a step is a whole number.
__device__ inline double power(double x, double n) {
  double result = 1;
  for (auto left = static_cast<uint64_t>(n); left != 0; left >>= 1, x *= x)
    if (left & 1) result *= x;
  return result;
}

__device__ inline Scalars scalars_of(const Attributes& a, const double* hyper, const double* grad_scale) {
  const double lr = hyper[0] * a.lr_mult, step = hyper[1];
  return {static_cast<float>(grad_scale[1]),
          static_cast<float>(a.beta1),
          static_cast<float>(a.beta2),
          static_cast<float>(1 - a.beta1),
          static_cast<float>(1 - a.beta2),
          static_cast<float>(1 - lr * a.weight_decay),
          static_cast<float>(lr / (1 - power(a.beta1, step))),
          static_cast<float>(1 / sqrt(1 - power(a.beta2, step))),
          static_cast<float>(a.eps)};
}

// The same operations on an element wherever it lies, so pieces get the bits of the whole.
__device__ inline void move_moments(const Scalars& s, float g, float& m, float& v) {
  const float gradient = g * s.gradient_scale;
  m = fmaf(s.beta1, m, s.one_minus_beta1 * gradient);
  v = fmaf(s.beta2, v, s.one_minus_beta2 * (gradient * gradient));
}
__device__ inline void step(const Scalars& s, float g, float& w, float& m, float& v) {
  move_moments(s, g, m, v);
  w = fmaf(w, s.decay, -(s.rate * m / fmaf(sqrtf(v), s.inverse_root2, s.eps)));
}

static __global__ void make_scalars(Attributes attributes, const double* hyper, const double* grad_scale,
                                    Scalars* out) {
  *out = scalars_of(attributes, hyper, grad_scale);
}

inline Attributes adamw_attributes(const Invocation& call) {
  return {call.attr("beta1"), call.attr("beta2"), call.attr("eps"), call.attr("weight_decay"),
          call.attr("lr_mult")};
}

inline Scalars* room_for_scalars(const Invocation& call) {
  static_assert(sizeof(Scalars) == kAdamwScalarBytes);
  return reinterpret_cast<Scalars*>(call.scratch_for(kAdamwScalarBytes));
}

}  // namespace pleat::kernels::cuda
