#include "kernels/rmsnorm/rmsnorm.h"

#include <cmath>

#include "kernels/math/reduce.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::rmsnorm::Forward<Arg> args(call.args);
    const T* x = args.x.as<T>();
    const T* __restrict w = args.w.as<T>();
    T* y = args.y.as<T>();
    T* rstd = args.rstd.as<T>();
    const int64_t rows = args.x.dim(0), width = args.x.dim(1);
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
    const signature::rmsnorm::BackwardInput<Arg> args(call.args);
    const T* dy = args.dy.as<T>();
    const T* x = args.x.as<T>();
    const T* w = args.w.as<T>();
    const T* rstd = args.rstd.as<T>();
    const T* dresidual = args.dresidual.as<T>();
    T* dx = args.dx.as<T>();
    const bool accumulate = args.dx.into() == Into::Accumulate;
    const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
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
    const signature::rmsnorm::BackwardWeight<Arg> args(call.args);
    const T* dy = args.dy.as<T>();
    const T* x = args.x.as<T>();
    const T* rstd = args.rstd.as<T>();
    T* dw = args.dw.as<T>();
    const bool accumulate = args.dw.into() == Into::Accumulate;
    const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
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

constexpr Binding kTable[] = {
    row<signature::rmsnorm::Forward, Forward>([](const auto& a) { return a.x.dtype; }),
    row<signature::rmsnorm::BackwardInput, BackwardInput>([](const auto& a) { return a.dy.dtype; }),
    row<signature::rmsnorm::BackwardWeight, BackwardWeight>(
        [](const auto& a) { return common_type(a.dw, a.dy); }),
};

}  // namespace

std::span<const Binding> rmsnorm_bindings() { return kTable; }

}  // namespace pleat::kernels
