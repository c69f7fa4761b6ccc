// AdamW and the router-bias rule: the only kernels here that write persistent values, each obeying `commit`.
#include <algorithm>

#include "kernels/math/coords.h"
#include "kernels/math/tiles.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/optimizer.h"
#include "tensor/bf16.h"

namespace pleat::kernels {
namespace {

// A block of a state as numbers of the arithmetic: where it lies, or, kept in bf16, widened before the update and
// rounded once behind it. The weight moves by what was not rounded yet.
template <class T, class Kept>
struct StateBlock {
  T wide[kAdamwBlock];
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
    const Piece piece = args.coords.present
                            ? piece_of(args.w.size(), args.g.size(), coordinate(args.coords, call))
                            : Piece{0, args.g.size()};
    T* w = args.w.as<T>() + piece.first;
    M* m = static_cast<M*>(args.m.data);
    V* v = static_cast<V*>(args.v.data);
    const AdamwScalars<T> scalars = adamw_scalars<T>(call, args.hyper, args.grad_scale);
    const Tiling tiling = element_tiling(piece.count);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t end = tiling.end(tile_idx);
      StateBlock<T, M> m_block;
      StateBlock<T, V> v_block;
      T root[kAdamwBlock];
      for (int64_t at = tiling.begin(tile_idx); at < end; at += kAdamwBlock) {
        const int64_t count = std::min(kAdamwBlock, end - at);
        adamw_block(scalars, count, g + at, w + at, m_block.open(m + at, count), v_block.open(v + at, count),
                    root);
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
