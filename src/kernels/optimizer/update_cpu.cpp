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
    if (*call[3].as<int32_t>() == 0) return;
    const T* g = call[0].as<T>();
    const double* hyper = call[1].as<double>();
    const Piece piece = call[4].present
                            ? piece_of(call[5].size(), call[0].size(), coordinate("adamw", call, call[4]))
                            : Piece{0, call[0].size()};
    T* w = call[5].as<T>() + piece.first;
    T* m = call[6].as<T>();
    T* v = call[7].as<T>();
    const double lr = hyper[0] * call.attr("lr_mult"), step = hyper[1];
    const double beta1 = call.attr("beta1"), beta2 = call.attr("beta2");
    const AdamwScalars<T> scalars{
        .gradient_scale = static_cast<T>(call[2].as<double>()[1]),
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
  if (*call[1].as<int32_t>() == 0) return;
  const int64_t* load = call[0].as<int64_t>();
  float* bias = call[2].as<float>();
  const int64_t num_experts = call[0].dim(0);
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
  require_same_dtype("adamw", call, {"g", "", "", "", "", "w", "m", "v"});
  require_dtype("adamw", "hyper", call[1], tensor::Dtype::F64);
  require_shape("adamw", "hyper", call[1], {4});
  require_dtype("adamw", "grad_scale", call[2], tensor::Dtype::F64);
  require_shape("adamw", "grad_scale", call[2], {2});
  require_dtype("adamw", "commit", call[3], tensor::Dtype::I32);
  require_shape("adamw", "commit", call[3], {1});
  require_coords("adamw", call, call[4]);
  if (call[4].present) require_shard("adamw", "g", call, call[0]);
  constexpr std::string_view names[] = {"w", "m", "v"};
  for (size_t i = 0; i < 3; ++i) {
    if (i > 0 || !call[4].present) require_like("adamw", names[i], call[5 + i], "g", call[0]);
    require_in_place("adamw", names[i], call[5 + i]);
  }
  require_open_unit("beta1", call.attr("beta1"));
  require_open_unit("beta2", call.attr("beta2"));
  for (const char* key : {"eps", "weight_decay", "lr_mult"})
    if (!(call.attr(key) >= 0))
      base::fail("[adamw] attribute '{}' is {}, needed 0 or more", key, call.attr(key));
  return select_float<Adamw>(call[0].dtype);
}

Kernel resolve_bias_update(const Invocation& call) {
  require_rank("bias_update", "load", call[0], 1);
  require_dtype("bias_update", "load", call[0], tensor::Dtype::I64);
  require_dtype("bias_update", "commit", call[1], tensor::Dtype::I32);
  require_shape("bias_update", "commit", call[1], {1});
  require_dtype("bias_update", "bias", call[2], tensor::Dtype::F32);
  require_shape("bias_update", "bias", call[2], {call[0].dim(0)});
  require_in_place("bias_update", "bias", call[2]);
  call.attr("rate");
  return run_bias_update;
}

}  // namespace pleat::kernels
