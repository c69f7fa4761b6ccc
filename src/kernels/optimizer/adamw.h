// The arithmetic of AdamW (kernels/optimizer/optimizer.h) on a block of an update, for the files that differ in how weights
// and states are kept.
#pragma once

#include <cmath>

#include "kernels/contract.h"
#include "kernels/math/exp.h"
#include "kernels/math/sqrt.h"

namespace pleat::kernels {

template <class T>
struct AdamwScalars {
  T gradient_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, decay, rate, inverse_root2, eps;
};
template <class T>
AdamwScalars<T> adamw_scalars(const Invocation& call, const Arg& hyper_values, const Arg& grad_scale) {
  const double* hyper = hyper_values.as<double>();
  const double lr = hyper[0] * call.attr("lr_mult"), step = hyper[1];
  const double beta1 = call.attr("beta1"), beta2 = call.attr("beta2");
  return {
      .gradient_scale = static_cast<T>(grad_scale.as<double>()[1]),
      .beta1 = static_cast<T>(beta1),
      .beta2 = static_cast<T>(beta2),
      .one_minus_beta1 = static_cast<T>(1 - beta1),
      .one_minus_beta2 = static_cast<T>(1 - beta2),
      .decay = static_cast<T>(1 - lr * call.attr("weight_decay")),
      .rate = static_cast<T>(lr / (1 - std::pow(beta1, step))),
      .inverse_root2 = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, step))),
      .eps = static_cast<T>(call.attr("eps")),
  };
}

// One pass over memory: a block of all four arrays stays in the first-level cache between the loops. Fused
// multiply-adds are written out, so that an element's bits do not depend on its place in a block: pieces of a
// cut tensor are updated exactly as the whole. `root` gets the roots of v.
constexpr int64_t kAdamwBlock = 1024;
template <class T>
void adamw_block(const AdamwScalars<T> s, int64_t count, const T* __restrict g, T* __restrict w,
                 T* __restrict m, T* __restrict v, T* __restrict root) {
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * s.gradient_scale;
    m[i] = multiply_add(s.beta1, m[i], s.one_minus_beta1 * gradient);
    v[i] = multiply_add(s.beta2, v[i], s.one_minus_beta2 * (gradient * gradient));
  }
  square_roots(v, count, root);
  for (int64_t i = 0; i < count; ++i)
    w[i] = multiply_add(w[i], s.decay, -(s.rate * m[i] / multiply_add(root[i], s.inverse_root2, s.eps)));
}

}  // namespace pleat::kernels
