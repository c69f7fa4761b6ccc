// AdamW and the router-bias rule: the only kernels here that write persistent values, each obeying `commit`.
#include <algorithm>
#include <cmath>

#include "kernels/math/coords.h"
#include "kernels/math/exp.h"
#include "kernels/math/sqrt.h"
#include "kernels/math/tiles.h"
#include "kernels/optimizer/optimizer.h"
#include "tensor/bf16.h"

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

// A block of a state as numbers of the arithmetic: where it lies, or, kept in bf16, widened before the update and
// rounded once behind it. The weight moves by what was not rounded yet.
template <class T, class Kept>
struct StateBlock {
  T wide[kBlock];
  T* open(const Kept* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) wide[i] = tensor::widened(from[i]);
    return wide;
  }
  void close(Kept* to, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) to[i] = tensor::narrowed(wide[i]);
  }
};
template <class T>
struct StateBlock<T, T> {
  T* open(T* from, int64_t) { return from; }
  void close(T*, int64_t) const {}
};

// T: of arithmetic, gradients and weights. M, V: what keeps the moments, T or uint16_t for bf16.
template <class T, class M, class V>
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
    M* m = static_cast<M*>(args.m.data);
    V* v = static_cast<V*>(args.v.data);
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
      StateBlock<T, M> m_block;
      StateBlock<T, V> v_block;
      for (int64_t at = tiling.begin(tile_idx); at < end; at += kBlock) {
        const int64_t count = std::min(kBlock, end - at);
        adamw_block(scalars, count, g + at, w + at, m_block.open(m + at, count), v_block.open(v + at, count));
        m_block.close(m + at, count);
        v_block.close(v + at, count);
      }
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

Kernel resolve_adamw(const Invocation& call) {
  using tensor::Dtype;
  const signature::adamw::Update<Arg> args(call.args);
  if (args.g.dtype != args.w.dtype) return nullptr;
  if (args.w.dtype == Dtype::F64) return &Adamw<double, double, double>::run;
  if (args.w.dtype != Dtype::F32) return nullptr;
  const bool m_narrow = args.m.dtype == Dtype::BF16, v_narrow = args.v.dtype == Dtype::BF16;
  if (m_narrow && v_narrow) return &Adamw<float, uint16_t, uint16_t>::run;
  if (m_narrow) return &Adamw<float, uint16_t, float>::run;
  return v_narrow ? &Adamw<float, float, uint16_t>::run : &Adamw<float, float, float>::run;
}

constexpr Binding kTable[] = {
    row<signature::adamw::Update>(resolve_adamw),
    row<signature::bias_update::Update, run_bias_update>(),
};

}  // namespace

std::span<const Binding> update_bindings() { return kTable; }

}  // namespace pleat::kernels
