// AdamW and the router-bias rule: the only kernels here that write persistent values, each obeying `commit`.
#include <algorithm>
#include <cmath>

#include "kernels/math/coords.h"
#include "kernels/math/exp.h"
#include "kernels/math/sqrt.h"
#include "kernels/math/tiles.h"
#include "kernels/optimizer/optimizer.h"

namespace pleat::kernels {
namespace {

template <class T>
struct AdamwScalars {
  T gradient_scale, beta1, beta2, one_minus_beta1, one_minus_beta2, decay, rate, inverse_root2, eps;
};

// One pass over memory: a block of all four arrays stays in the first-level cache between the loops. Fused
// multiply-adds are written out, so that an element's bits do not depend on its place in a block: pieces of a
// cut tensor are updated exactly as the whole.
constexpr int64_t kBlock = 1024;
template <class T>
void adamw_block(const AdamwScalars<T> s, int64_t count, const T* __restrict g, T* __restrict w,
                 T* __restrict m, T* __restrict v) {
  for (int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * s.gradient_scale;
    m[i] = multiply_add(s.beta1, m[i], s.one_minus_beta1 * gradient);
    v[i] = multiply_add(s.beta2, v[i], s.one_minus_beta2 * (gradient * gradient));
  }
  T root[kBlock];
  square_roots(v, count, root);
  for (int64_t i = 0; i < count; ++i)
    w[i] = multiply_add(w[i], s.decay, -(s.rate * m[i] / multiply_add(root[i], s.inverse_root2, s.eps)));
}

template <class T>
struct Adamw {
  static void run(const Invocation& call) {
    const signature::adamw::Update<Arg> args(call.args);
    if (*args.commit.as<int32_t>() == 0) return;
    const T* g = args.g.as<T>();
    const double* hyper = args.hyper.as<double>();
    const Piece piece = args.coords.present
                            ? piece_of(args.w.size(), args.g.size(), coordinate(args.coords, call))
                            : Piece{0, args.g.size()};
    T* w = args.w.as<T>() + piece.first;
    T* m = args.m.as<T>();
    T* v = args.v.as<T>();
    const double lr = hyper[0] * call.attr("lr_mult"), step = hyper[1];
    const double beta1 = call.attr("beta1"), beta2 = call.attr("beta2");
    const AdamwScalars<T> scalars{
        .gradient_scale = static_cast<T>(args.grad_scale.as<double>()[1]),
        .beta1 = static_cast<T>(beta1),
        .beta2 = static_cast<T>(beta2),
        .one_minus_beta1 = static_cast<T>(1 - beta1),
        .one_minus_beta2 = static_cast<T>(1 - beta2),
        .decay = static_cast<T>(1 - lr * call.attr("weight_decay")),
        .rate = static_cast<T>(lr / (1 - std::pow(beta1, step))),
        .inverse_root2 = static_cast<T>(1 / std::sqrt(1 - std::pow(beta2, step))),
        .eps = static_cast<T>(call.attr("eps")),
    };
    const Tiling tiling = element_tiling(piece.count);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t end = tiling.end(tile_idx);
      for (int64_t at = tiling.begin(tile_idx); at < end; at += kBlock)
        adamw_block(scalars, std::min(kBlock, end - at), g + at, w + at, m + at, v + at);
    });
  }
};

void run_bias_update(const Invocation& call) {
  const signature::bias_update::Update<Arg> args(call.args);
  if (*args.commit.as<int32_t>() == 0) return;
  const int64_t* load = args.load.as<int64_t>();
  float* bias = args.bias.as<float>();
  const int64_t num_experts = args.load.dim(0);
  const double rate = call.attr("rate");
  int64_t sum = 0;
  for (int64_t e = 0; e < num_experts; ++e) sum += load[e];
  for (int64_t e = 0; e < num_experts; ++e) {
    const int64_t gap = sum - num_experts * load[e];
    const int sign = (gap > 0) - (gap < 0);
    bias[e] += static_cast<float>(rate) * static_cast<float>(sign);
  }
}

}  // namespace

Kernel resolve_adamw(const Invocation& call) {
  const signature::adamw::Update<Arg> args(call.args);
  for (const Arg* kept : {&args.g, &args.m, &args.v})
    if (kept->dtype != args.w.dtype) return nullptr;
  return select_float<Adamw>(args.w.dtype);
}

Kernel resolve_bias_update(const Invocation&) { return run_bias_update; }

}  // namespace pleat::kernels
