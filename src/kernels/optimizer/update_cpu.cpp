// AdamW and the router-bias rule: the only kernels here that write persistent values, each obeying `commit`.
#include <algorithm>
#include <cmath>

#include "kernels/math/coords.h"
#include "kernels/math/exp.h"
#include "kernels/math/require.h"
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
    const signature::adamw::Update args(call.args);
    if (*args.commit.as<int32_t>() == 0) return;
    const T* g = args.g.as<T>();
    const double* hyper = args.hyper.as<double>();
    const Piece piece = args.coords.present
                            ? piece_of(args.w.size(), args.g.size(), coordinate("adamw", call, args.coords))
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
  const signature::bias_update::Update args(call.args);
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

void require_open_unit(std::string_view key, double number) {
  if (!(number >= 0 && number < 1))
    base::fail("[adamw] attribute '{}' is {}, needed 0 <= {} < 1", key, number, key);
}

}  // namespace

Kernel resolve_adamw(const Invocation& call) {
  const signature::adamw::Update args(call.args);
  require_same_type({&args.g, &args.w, &args.m, &args.v});
  require_type(args.hyper, tensor::Dtype::F64);
  require_shape(args.hyper, {4});
  require_type(args.grad_scale, tensor::Dtype::F64);
  require_shape(args.grad_scale, {2});
  require_type(args.commit, tensor::Dtype::I32);
  require_shape(args.commit, {1});
  require_coords("adamw", call, args.coords);
  if (args.coords.present) require_shard("adamw", "g", call, args.g);
  constexpr std::string_view names[] = {"w", "m", "v"};
  for (size_t i = 0; i < 3; ++i) {
    if (i > 0 || !args.coords.present) require_like("adamw", names[i], call[5 + i], "g", args.g);
    require_in_place("adamw", names[i], call[5 + i]);
  }
  require_open_unit("beta1", call.attr("beta1"));
  require_open_unit("beta2", call.attr("beta2"));
  for (const char* key : {"eps", "weight_decay", "lr_mult"})
    if (!(call.attr(key) >= 0))
      base::fail("[adamw] attribute '{}' is {}, needed 0 or more", key, call.attr(key));
  return select_float<Adamw>(args.g.dtype);
}

Kernel resolve_bias_update(const Invocation& call) {
  const signature::bias_update::Update args(call.args);
  require_rank(args.load, 1);
  require_type(args.load, tensor::Dtype::I64);
  require_type(args.commit, tensor::Dtype::I32);
  require_shape(args.commit, {1});
  require_type(args.bias, tensor::Dtype::F32);
  require_shape(args.bias, {args.load.dim(0)});
  require_in_place(args.bias);
  call.attr("rate");
  return run_bias_update;
}

}  // namespace pleat::kernels
