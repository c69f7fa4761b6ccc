#include "kernels/rope/rope.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "kernels/math/reduce.h"
#include "kernels/math/tiles.h"
#include "kernels/rope/rotate.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Table {
  static void run(const Invocation& call) {
    const signature::rope_table::Forward<Arg> args(call.args);
    const int32_t* positions = args.positions.as<int32_t>();
    const double* inv_freq = args.inv_freq.as<double>();
    T* cos_sin = args.cos_sin.as<T>();
    const int64_t rows = args.positions.dim(0), half = args.inv_freq.dim(0);
    const double scale = call.attr("scale");
    const Tiling tiling = row_tiling(rows, 16 * half);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t)
        for (int64_t i = 0; i < half; ++i) {
          const double angle = positions[t] * inv_freq[i];
          cos_sin[t * 2 * half + i] = static_cast<T>(scale * std::cos(angle));
          cos_sin[t * 2 * half + half + i] = static_cast<T>(scale * std::sin(angle));
        }
    });
  }
};

// Rotates head x (scaled by rstd * w when w is given) into y; direction -1 turns back. y may be x.
template <class T>
void rotate(const RopeShape& shape, T direction, const T* cos_sin, const T* x, T rstd, const T* w, T* y) {
  const int64_t d = shape.head_dim, r = shape.rotary_dim;
  if (w) {
    for (int64_t i = 0; i < d; ++i) y[i] = x[i] * rstd * w[i];
    x = y;
  }
  rotate_pairs(r, shape.interleaved, direction, cos_sin, x, y);
  if (x != y)
    for (int64_t i = r; i < d; ++i) y[i] = x[i];
}

// 1 / sqrt(mean(x^2) + eps) of each norm of a row.
template <class T>
void norm_row(const RopeShape& shape, const T* row, double eps, T* rstd) {
  for (int64_t n = 0; n < shape.num_norms(); ++n) {
    const int64_t width = shape.norm_width(n);
    rstd[n] = static_cast<T>(
        1 / std::sqrt(sum_of_squares(row + shape.norm_begin(n), width) / static_cast<double>(width) + eps));
  }
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::qk_rope::Forward<Arg> args(call.args);
    const RopeShape shape = rope_shape(call);
    const T* qkv = args.qkv.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    const T* q_norm = args.q_norm.as<T>();
    const T* k_norm = args.k_norm.as<T>();
    T* out = args.out.as<T>();
    T* rstd = args.rstd.as<T>();
    const double eps = call.attr("eps");
    const int64_t rows = args.qkv.dim(0), d = shape.head_dim, normed = shape.num_normed();
    const Tiling tiling = row_tiling(rows, shape.width());
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* row = qkv + t * shape.width();
        T* to = out + t * shape.width();
        T* scales = rstd ? rstd + t * shape.num_norms() : nullptr;
        if (q_norm) norm_row(shape, row, eps, scales);
        for (int64_t h = 0; h < normed; ++h)
          rotate(shape, T(1), cos_sin + t * shape.rotary_dim, row + h * d,
                 q_norm ? scales[shape.norm_of(h)] : T(1), shape.weights_of(h, q_norm, k_norm), to + h * d);
        if (to != row) std::copy_n(row + normed * d, shape.kv_heads * d, to + normed * d);
      }
    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::qk_rope::BackwardInput<Arg> args(call.args);
    const RopeShape shape = rope_shape(call);
    const T* dout = args.dout.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    const T* qkv = args.qkv.as<T>();
    const T* q_norm = args.q_norm.as<T>();
    const T* k_norm = args.k_norm.as<T>();
    const T* rstd = args.rstd.as<T>();
    T* dqkv = args.dqkv.as<T>();
    const int64_t rows = args.dout.dim(0), d = shape.head_dim, normed = shape.num_normed();
    const Tiling tiling = row_tiling(rows, shape.width());
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* row = dout + t * shape.width();
        T* to = dqkv + t * shape.width();
        for (int64_t h = 0; h < normed; ++h)
          rotate<T>(shape, T(-1), cos_sin + t * shape.rotary_dim, row + h * d, T(1), nullptr, to + h * d);
        for (int64_t n = 0; q_norm && n < shape.num_norms(); ++n) {
          const int64_t begin = shape.norm_begin(n), width = shape.norm_width(n);
          T* dx = to + begin;
          const T* x = qkv + t * shape.width() + begin;
          const T* w = begin < shape.heads * d ? q_norm : k_norm;
          const T scale = rstd[t * shape.num_norms() + n];
          const double r = scale;
          const T back = static_cast<T>(r * r * r * dot3_of(dx, w, x, width) / static_cast<double>(width));
          for (int64_t i = 0; i < width; ++i) dx[i] = dx[i] * w[i] * scale - x[i] * back;
        }
        if (to != row) std::copy_n(row + normed * d, shape.kv_heads * d, to + normed * d);
      }
    });
  }
};

template <class T>
struct BackwardWeight {
  // Partial sums of all blocks live on the stack: 2 (q, k) * d numbers a block.
  static constexpr int64_t kPartials = 4 * kMaxRopeHeadDim;

  // Every head has weights of its own: a tile owns one head and walks all rows.
  static void run_full(const RopeShape& shape, const Invocation& call, const T* dout, const T* cos_sin,
                       const T* qkv, const T* rstd) {
    const signature::qk_rope::BackwardWeight<Arg> args(call.args);
    const int64_t rows = args.dout.dim(0), d = shape.head_dim;
    call.pool->for_each_tile(shape.num_normed(), [&](int64_t h) {
      double sum[kMaxRopeHeadDim];
      std::fill_n(sum, d, 0.0);
      T turned[kMaxRopeHeadDim];
      for (int64_t t = 0; t < rows; ++t) {
        const int64_t at = t * shape.width() + h * d;
        rotate<T>(shape, T(-1), cos_sin + t * shape.rotary_dim, dout + at, T(1), nullptr, turned);
        const double scale = rstd[t * shape.num_norms() + shape.norm_of(h)];
        for (int64_t i = 0; i < d; ++i)
          sum[i] += static_cast<double>(turned[i]) * static_cast<double>(qkv[at + i]) * scale;
      }
      const Arg& arg = h < shape.heads ? args.dq_norm : args.dk_norm;
      T* to = arg.as<T>() + (h < shape.heads ? h : h - shape.heads) * d;
      for (int64_t i = 0; i < d; ++i)
        to[i] = static_cast<T>(arg.into() == Into::Accumulate ? to[i] + sum[i] : sum[i]);
    });
  }

  static void run(const Invocation& call) {
    const signature::qk_rope::BackwardWeight<Arg> args(call.args);
    const RopeShape shape = rope_shape(call);
    const T* dout = args.dout.as<T>();
    const T* cos_sin = args.cos_sin.as<T>();
    const T* qkv = args.qkv.as<T>();
    const T* rstd = args.rstd.as<T>();
    if (shape.full_norm) return run_full(shape, call, dout, cos_sin, qkv, rstd);
    const int64_t rows = args.dout.dim(0), d = shape.head_dim, normed = shape.num_normed();
    const int64_t max_blocks = std::clamp<int64_t>(kPartials / (2 * d), 1, 16);
    const Tiling blocks{rows, std::max<int64_t>(16, base::ceil_div(rows, max_blocks))};
    double partial[kPartials];
    call.pool->for_each_tile(blocks.num_tiles(), [&](int64_t block_idx) {
      double* q_sum = partial + block_idx * 2 * d;
      std::fill_n(q_sum, 2 * d, 0.0);
      T turned[kMaxRopeHeadDim];
      for (int64_t t = blocks.begin(block_idx); t < blocks.end(block_idx); ++t)
        for (int64_t h = 0; h < normed; ++h) {
          const int64_t at = t * shape.width() + h * d;
          rotate<T>(shape, T(-1), cos_sin + t * shape.rotary_dim, dout + at, T(1), nullptr, turned);
          double* sum = h < shape.heads ? q_sum : q_sum + d;
          const double scale = rstd[t * normed + h];
          for (int64_t i = 0; i < d; ++i)
            sum[i] += static_cast<double>(turned[i]) * static_cast<double>(qkv[at + i]) * scale;
        }
    });
    for (int64_t which = 0; which < 2; ++which) {
      const Arg& arg = which == 0 ? args.dq_norm : args.dk_norm;
      T* to = arg.as<T>();
      for (int64_t i = 0; i < d; ++i) {
        double sum = 0;
        for (int64_t b = 0; b < blocks.num_tiles(); ++b) sum += partial[(2 * b + which) * d + i];
        to[i] = static_cast<T>(arg.into() == Into::Accumulate ? to[i] + sum : sum);
      }
    }
  }
};

Kernel resolve_backward_weight(const Invocation& call) {
  const signature::qk_rope::BackwardWeight<Arg> args(call.args);
  const tensor::Dtype dtype = args.dout.dtype;
  if (args.dq_norm.dtype != dtype || args.dk_norm.dtype != dtype) return nullptr;
  return select_float<BackwardWeight>(dtype);
}

constexpr Binding kTable[] = {
    row<signature::rope_table::Forward, Table>([](const auto& a) { return a.cos_sin.dtype; }),
    row<signature::qk_rope::Forward, Forward>([](const auto& a) { return a.qkv.dtype; }),
    row<signature::qk_rope::BackwardInput, BackwardInput>([](const auto& a) { return a.dout.dtype; }),
    row<signature::qk_rope::BackwardWeight>(resolve_backward_weight),
};

}  // namespace

std::span<const Binding> rope_bindings() { return kTable; }

}  // namespace pleat::kernels
