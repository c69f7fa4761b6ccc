// Rows summed with what did not go through the collective: bias, shared experts, residual.
#include <algorithm>

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
    const signature::add_rows::Forward<Arg> args(call.args);
    const T *x = args.x.as<T>(), *bias = args.bias.as<T>(), *shared = args.shared.as<T>(),
            *residual = args.residual.as<T>();
    T* y = args.y.as<T>();
    const int64_t rows = args.x.dim(0), width = args.x.dim(1);
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
    const signature::add_rows::BackwardWeight<Arg> args(call.args);
    const T* dy = args.dy.as<T>();
    T* dbias = args.dbias.as<T>();
    const bool accumulate = args.dbias.into() == Into::Accumulate;
    const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
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

constexpr Binding kTable[] = {
    row<signature::add_rows::Forward, Forward>([](const auto& a) { return a.x.dtype; }),
    row<signature::add_rows::BackwardWeight, BackwardWeight>(
        [](const auto& a) { return common_type(a.dbias, a.dy); }),
};

}  // namespace

std::span<const Binding> add_rows_bindings() { return kTable; }

}  // namespace pleat::kernels
