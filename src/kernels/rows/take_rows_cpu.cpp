// Rows picked by index: reordering after a gather or an exchange, and its transpose.
#include <algorithm>

#include "kernels/math/tiles.h"
#include "kernels/rows/rows.h"

namespace pleat::kernels {
namespace {

int64_t width_of(const Arg& rows) { return rows.shape.size() == 2 ? rows.dim(1) : 1; }

int64_t rows_to_write(const Arg& offsets, int64_t rows) {
  if (!offsets.present) return rows;
  const int64_t limit = offsets.as<int32_t>()[offsets.dim(0) - 1];
  if (limit < 0 || limit > rows)
    base::fail("[take_rows] offsets end at row {}, needed 0 to {}, the rows of 'y'", limit, rows);
  return limit;
}

template <class T>
void take(const Invocation& call, const Arg& source, const Arg& picks, const Arg& offsets,
          const Arg& target) {
  const T* x = source.as<T>();
  const int32_t* index = picks.as<int32_t>();
  T* y = target.as<T>();
  const bool accumulate = target.into() == Into::Accumulate;
  const int64_t num_from = source.dim(0), width = width_of(source);
  const int64_t rows = rows_to_write(offsets, target.dim(0));
  for (int64_t r = 0; r < rows; ++r)
    if (index[r] < -1 || index[r] >= num_from)
      base::fail("[take_rows] index {} of row {} is outside the {} rows of 'x'", index[r], r, num_from);
  const Tiling tiling = row_tiling(rows, width);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t r = tiling.begin(tile_idx); r < tiling.end(tile_idx); ++r) {
      T* __restrict to = y + r * width;
      if (index[r] < 0) {
        if (!accumulate) std::fill_n(to, width, T(0));
        continue;
      }
      const T* __restrict from = x + index[r] * width;
      if (accumulate) {
        for (int64_t j = 0; j < width; ++j) to[j] = static_cast<T>(to[j] + from[j]);
      } else {
        std::copy_n(from, width, to);
      }
    }
  });
}

// Args: the row of either phase.
template <class T, template <class> class Args>
void run(const Invocation& call) {
  const Args<Arg> args(call.args);
  take<T>(call, args.x, args.index, args.offsets, args.y);
}

template <template <class> class Args>
Kernel resolve(const Invocation& call) {
  switch (Args<Arg>(call.args).x.dtype) {
    case tensor::Dtype::U8:
      return run<uint8_t, Args>;
    case tensor::Dtype::I32:
      return run<int32_t, Args>;
    case tensor::Dtype::I64:
      return run<int64_t, Args>;
    case tensor::Dtype::F32:
      return run<float, Args>;
    case tensor::Dtype::F64:
      return run<double, Args>;
    case tensor::Dtype::BF16:
    case tensor::Dtype::I16:
    case tensor::Dtype::E4M3:
    case tensor::Dtype::E8M0:
    case tensor::Dtype::E2M1:
      break;
  }
  return nullptr;
}

constexpr Binding kTable[] = {
    row<signature::take_rows::Forward>(resolve<signature::take_rows::Forward>),
    row<signature::take_rows::BackwardInput>(resolve<signature::take_rows::BackwardInput>),
};

}  // namespace

std::span<const Binding> take_rows_bindings() { return kTable; }

}  // namespace pleat::kernels
