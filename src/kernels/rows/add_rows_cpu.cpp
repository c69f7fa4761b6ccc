// Rows summed with what did not go through the collective: bias, shared experts, residual.
#include <algorithm>

#include "kernels/math/require.h"
#include "kernels/math/tiles.h"
#include "kernels/rows/rows.h"

namespace pleat::kernels {
namespace {

template <class T>
void add_to(T* __restrict to, const T* __restrict from, int64_t count) {
  for (int64_t j = 0; j < count; ++j) to[j] += from[j];
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const T *x = call[0].as<T>(), *bias = call[1].as<T>(), *shared = call[2].as<T>(),
            *residual = call[3].as<T>();
    T* y = call[4].as<T>();
    const int64_t rows = call[0].dim(0), width = call[0].dim(1);
    const Tiling tiling = row_tiling(rows, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        T* to = y + t * width;
        std::copy_n(x + t * width, width, to);
        if (bias) add_to(to, bias, width);
        if (shared) add_to(to, shared + t * width, width);
        if (residual) add_to(to, residual + t * width, width);
      }
    });
  }
};

template <class T>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const T* dy = call[0].as<T>();
    T* dbias = call[1].as<T>();
    const bool accumulate = call[1].into() == Into::Accumulate;
    const int64_t rows = call[0].dim(0), width = call[0].dim(1);
    const Tiling tiling = column_tiling(width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t begin = tiling.begin(tile_idx), count = tiling.end(tile_idx) - begin;
      double sum[kColumnTile] = {};
      for (int64_t t = 0; t < rows; ++t) {
        const T* row = dy + t * width + begin;
        for (int64_t j = 0; j < count; ++j) sum[j] += static_cast<double>(row[j]);
      }
      for (int64_t j = 0; j < count; ++j)
        dbias[begin + j] = static_cast<T>(accumulate ? dbias[begin + j] + sum[j] : sum[j]);
    });
  }
};

}  // namespace

Kernel resolve_add_rows_forward(const Invocation& call) {
  require_rank("add_rows", "x", call[0], 2);
  const int64_t rows = call[0].dim(0), width = call[0].dim(1);
  require_shape("add_rows", "bias", call[1], {width});
  require_shape("add_rows", "shared", call[2], {rows, width});
  require_shape("add_rows", "residual", call[3], {rows, width});
  require_shape("add_rows", "y", call[4], {rows, width});
  require_same_dtype("add_rows", call, {"x", "bias", "shared", "residual", "y"});
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_add_rows_backward_weight(const Invocation& call) {
  require_rank("add_rows", "dy", call[0], 2);
  require_shape("add_rows", "dbias", call[1], {call[0].dim(1)});
  require_same_dtype("add_rows", call, {"dy", "dbias"});
  return select_float<BackwardWeight>(call[0].dtype);
}

}  // namespace pleat::kernels
