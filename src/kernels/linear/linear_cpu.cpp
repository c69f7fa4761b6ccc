#include <algorithm>

#include "kernels/linear/gemm.h"
#include "kernels/linear/linear.h"
#include "kernels/math/require.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const int64_t rows = call[0].dim(0), in = call[0].dim(1), out = call[1].dim(0);
    const T* x = call[0].as<T>();
    const T* w = call[1].as<T>();
    const T* bias = call[2].as<T>();
    const T* residual = call[3].as<T>();
    T* y = call[4].as<T>();
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
    const int64_t rows = call[0].dim(0), out = call[1].dim(0), in = call[1].dim(1);
    parallel_gemm(*call.pool, Transpose::No, Transpose::No, rows, in, out, T(1), call[0].as<T>(), out,
                  call[1].as<T>(), in, call[2].into() == Into::Accumulate ? T(1) : T(0), call[2].as<T>(), in);
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
    const int64_t rows = call[0].dim(0), out = call[0].dim(1), in = call[1].dim(1);
    parallel_gemm(*call.pool, Transpose::Yes, Transpose::No, out, in, rows, T(1), call[0].as<T>(), out,
                  call[1].as<T>(), in, call[2].into() == Into::Accumulate ? T(1) : T(0), call[2].as<T>(), in);
    if (call[3].present) sum_columns(*call.pool, call[0].as<T>(), rows, out, call[3].into(), call[3].as<T>());
  }
};

Kernel resolve_forward(const Invocation& call) {
  require_rank("linear", "x", call[0], 2);
  require_rank("linear", "w", call[1], 2);
  const int64_t rows = call[0].dim(0), in = call[0].dim(1), out = call[1].dim(0);
  require_shape("linear", "w", call[1], {out, in});
  require_shape("linear", "bias", call[2], {out});
  require_shape("linear", "residual", call[3], {rows, out});
  require_shape("linear", "y", call[4], {rows, out});
  require_same_dtype("linear", call, {"x", "w", "bias", "residual", "y"});
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  require_rank("linear", "dy", call[0], 2);
  require_rank("linear", "w", call[1], 2);
  const int64_t rows = call[0].dim(0), out = call[0].dim(1), in = call[1].dim(1);
  require_shape("linear", "w", call[1], {out, in});
  require_shape("linear", "dx", call[2], {rows, in});
  require_same_dtype("linear", call, {"dy", "w", "dx"});
  return select_float<BackwardInput>(call[0].dtype);
}

Kernel resolve_backward_weight(const Invocation& call) {
  require_rank("linear", "dy", call[0], 2);
  require_rank("linear", "x", call[1], 2);
  const int64_t rows = call[0].dim(0), out = call[0].dim(1), in = call[1].dim(1);
  require_shape("linear", "x", call[1], {rows, in});
  require_shape("linear", "dw", call[2], {out, in});
  require_shape("linear", "dbias", call[3], {out});
  require_same_dtype("linear", call, {"dy", "x", "dw", "dbias"});
  return select_float<BackwardWeight>(call[0].dtype);
}

}  // namespace

std::span<const Binding> linear_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::linear, Phase::Forward, resolve_forward},
      {KernelKind::linear, Phase::BackwardInput, resolve_backward_input},
      {KernelKind::linear, Phase::BackwardWeight, resolve_backward_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
