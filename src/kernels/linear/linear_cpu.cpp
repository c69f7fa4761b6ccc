#include <algorithm>

#include "kernels/linear/gemm.h"
#include "kernels/linear/linear.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::linear::Forward<Arg> args(call.args);
    const int64_t rows = args.x.dim(0), in = args.x.dim(1), out = args.w.dim(0);
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    const T* bias = args.bias.as<T>();
    const T* residual = args.residual.as<T>();
    T* y = args.y.as<T>();
    const GemmTiling tiling = gemm_tiling(rows, out, in);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const GemmTiling::Tile t = tiling.tile(tile_idx);
      // Bias and residual go in first, while the tile is on its way into the cache; the product adds to them.
      for (int64_t i = t.row; (bias || residual) && i < t.row + t.num_rows; ++i) {
        T* to = y + i * out + t.column;
        if (residual && residual != y) std::copy_n(residual + i * out + t.column, t.num_columns, to);
        if (bias && !residual) std::copy_n(bias + t.column, t.num_columns, to);
        if (bias && residual)
          for (int64_t j = 0; j < t.num_columns; ++j) to[j] += bias[t.column + j];
      }
      gemm(Transpose::No, Transpose::Yes, t.num_rows, t.num_columns, in, T(1), x + t.row * in, in,
           w + t.column * in, in, bias || residual ? T(1) : T(0), y + t.row * out + t.column, out);
    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::linear::BackwardInput<Arg> args(call.args);
    const int64_t rows = args.dy.dim(0), out = args.w.dim(0), in = args.w.dim(1);
    parallel_gemm(*call.pool, Transpose::No, Transpose::No, rows, in, out, T(1), args.dy.as<T>(), out,
                  args.w.as<T>(), in, args.dx.into() == Into::Accumulate ? T(1) : T(0), args.dx.as<T>(), in);
  }
};

template <class T>
void sum_columns(device::Pool& pool, const T* dy, int64_t rows, int64_t columns, Into into, T* dbias) {
  const Tiling tiling = column_tiling(columns);
  pool.for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    const int64_t begin = tiling.begin(tile_idx), width = tiling.end(tile_idx) - begin;
    double sum[kColumnTile] = {};
    for (int64_t t = 0; t < rows; ++t)
      for (int64_t j = 0; j < width; ++j) sum[j] += dy[t * columns + begin + j];
    for (int64_t j = 0; j < width; ++j) {
      T& to = dbias[begin + j];
      to = static_cast<T>(into == Into::Accumulate ? to + sum[j] : sum[j]);
    }
  });
}

template <class T>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const signature::linear::BackwardWeight<Arg> args(call.args);
    const int64_t rows = args.dy.dim(0), out = args.dy.dim(1), in = args.x.dim(1);
    parallel_gemm(*call.pool, Transpose::Yes, Transpose::No, out, in, rows, T(1), args.dy.as<T>(), out,
                  args.x.as<T>(), in, args.dw.into() == Into::Accumulate ? T(1) : T(0), args.dw.as<T>(), in);
    if (args.dbias.present)
      sum_columns(*call.pool, args.dy.as<T>(), rows, out, args.dbias.into(), args.dbias.as<T>());
  }
};

Kernel resolve_backward_weight(const Invocation& call) {
  const signature::linear::BackwardWeight<Arg> args(call.args);
  const tensor::Dtype dtype = args.dy.dtype;
  if (args.dw.dtype != dtype || (args.dbias.present && args.dbias.dtype != dtype)) return nullptr;
  return select_float<BackwardWeight>(dtype);
}

constexpr Binding kTable[] = {
    row<signature::linear::Forward, Forward>([](const auto& a) { return a.x.dtype; }),
    row<signature::linear::BackwardInput, BackwardInput>([](const auto& a) { return a.dy.dtype; }),
    row<signature::linear::BackwardWeight>(resolve_backward_weight),
};

}  // namespace

std::span<const Binding> linear_bindings() { return kTable; }

}  // namespace pleat::kernels
