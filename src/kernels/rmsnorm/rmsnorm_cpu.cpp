#include "kernels/rmsnorm/rmsnorm.h"

#include <cmath>

#include "kernels/math/reduce.h"
#include "kernels/math/require.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const T* x = call[0].as<T>();
    const T* __restrict w = call[1].as<T>();
    T* y = call[2].as<T>();
    T* rstd = call[3].as<T>();
    const int64_t rows = call[0].dim(0), width = call[0].dim(1);
    const double eps = call.attr("eps");
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* __restrict row = x + t * width;
        T* __restrict to = y + t * width;
        const T scale =
            static_cast<T>(1 / std::sqrt(sum_of_squares(row, width) / static_cast<double>(width) + eps));
        rstd[t] = scale;
        for (int64_t j = 0; j < width; ++j) to[j] = row[j] * scale * w[j];
      }
    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const T* dy = call[0].as<T>();
    const T* x = call[1].as<T>();
    const T* w = call[2].as<T>();
    const T* rstd = call[3].as<T>();
    const T* dresidual = call[4].as<T>();
    T* dx = call[5].as<T>();
    const bool accumulate = call[5].into() == Into::Accumulate;
    const int64_t rows = call[0].dim(0), width = call[0].dim(1);
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const T* row_dy = dy + t * width;
        const T* row_x = x + t * width;
        const T* row_residual = dresidual ? dresidual + t * width : nullptr;
        T* to = dx + t * width;
        const double r = rstd[t];
        const double mean = dot3_of(row_dy, w, row_x, width) / static_cast<double>(width);
        const T scale = rstd[t], back = static_cast<T>(r * r * r * mean);
        if (row_residual && accumulate) {
          for (int64_t j = 0; j < width; ++j)
            to[j] += row_residual[j] + (row_dy[j] * w[j] * scale - row_x[j] * back);
        } else if (row_residual) {
          for (int64_t j = 0; j < width; ++j)
            to[j] = row_residual[j] + (row_dy[j] * w[j] * scale - row_x[j] * back);
        } else if (accumulate) {
          for (int64_t j = 0; j < width; ++j) to[j] += row_dy[j] * w[j] * scale - row_x[j] * back;
        } else {
          for (int64_t j = 0; j < width; ++j) to[j] = row_dy[j] * w[j] * scale - row_x[j] * back;
        }
      }
    });
  }
};

template <class T>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const T* dy = call[0].as<T>();
    const T* x = call[1].as<T>();
    const T* rstd = call[2].as<T>();
    T* dw = call[3].as<T>();
    const bool accumulate = call[3].into() == Into::Accumulate;
    const int64_t rows = call[0].dim(0), width = call[0].dim(1);
    const Tiling tiling = column_tiling(width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t begin = tiling.begin(tile_idx), count = tiling.end(tile_idx) - begin;
      double sum[kColumnTile] = {};
      for (int64_t t = 0; t < rows; ++t) {
        const double r = rstd[t];
        const T* row_dy = dy + t * width + begin;
        const T* row_x = x + t * width + begin;
        for (int64_t j = 0; j < count; ++j)
          sum[j] += static_cast<double>(row_dy[j]) * static_cast<double>(row_x[j]) * r;
      }
      for (int64_t j = 0; j < count; ++j)
        dw[begin + j] = static_cast<T>(accumulate ? dw[begin + j] + sum[j] : sum[j]);
    });
  }
};

Kernel resolve_forward(const Invocation& call) {
  require_rank("rmsnorm", "x", call[0], 2);
  const int64_t rows = call[0].dim(0), width = call[0].dim(1);
  require_shape("rmsnorm", "w", call[1], {width});
  require_shape("rmsnorm", "y", call[2], {rows, width});
  require_shape("rmsnorm", "rstd", call[3], {rows});
  require_same_dtype("rmsnorm", call, {"x", "w", "y", "rstd"});
  call.attr("eps");
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  require_rank("rmsnorm", "dy", call[0], 2);
  const int64_t rows = call[0].dim(0), width = call[0].dim(1);
  require_shape("rmsnorm", "x", call[1], {rows, width});
  require_shape("rmsnorm", "w", call[2], {width});
  require_shape("rmsnorm", "rstd", call[3], {rows});
  require_shape("rmsnorm", "dresidual", call[4], {rows, width});
  require_shape("rmsnorm", "dx", call[5], {rows, width});
  require_same_dtype("rmsnorm", call, {"dy", "x", "w", "rstd", "dresidual", "dx"});
  return select_float<BackwardInput>(call[0].dtype);
}

Kernel resolve_backward_weight(const Invocation& call) {
  require_rank("rmsnorm", "dy", call[0], 2);
  const int64_t rows = call[0].dim(0), width = call[0].dim(1);
  require_shape("rmsnorm", "x", call[1], {rows, width});
  require_shape("rmsnorm", "rstd", call[2], {rows});
  require_shape("rmsnorm", "dw", call[3], {width});
  require_same_dtype("rmsnorm", call, {"dy", "x", "rstd", "dw"});
  return select_float<BackwardWeight>(call[0].dtype);
}

}  // namespace

std::span<const Binding> rmsnorm_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::rmsnorm, Phase::Forward, resolve_forward},
      {KernelKind::rmsnorm, Phase::BackwardInput, resolve_backward_input},
      {KernelKind::rmsnorm, Phase::BackwardWeight, resolve_backward_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
