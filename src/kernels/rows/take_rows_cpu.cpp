// Rows picked by index: reordering after a gather or an exchange, and its transpose.
#include <algorithm>

#include "kernels/math/require.h"
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
struct Take {
  static void run(const Invocation& call) {
    const signature::take_rows::BackwardInput args(call.args);
    const T* x = args.x.as<T>();
    const int32_t* index = args.index.as<int32_t>();
    T* y = args.y.as<T>();
    const bool accumulate = args.y.into() == Into::Accumulate;
    const int64_t num_from = args.x.dim(0), width = width_of(args.x);
    const int64_t rows = rows_to_write(args.offsets, args.y.dim(0));
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
};

}  // namespace

Kernel resolve_take_rows(const Invocation& call) {
  const signature::take_rows::BackwardInput args(call.args);
  if (args.x.shape.size() != 1) require_rank(args.x, 2);
  require_rank(args.y, args.x.shape.size());
  if (args.x.shape.size() == 2) require_shape(args.y, {args.y.dim(0), args.x.dim(1)});
  require_type(args.y, args.x.dtype);
  require_type(args.index, tensor::Dtype::I32);
  require_shape(args.index, {args.y.dim(0)});
  require_type(args.offsets, tensor::Dtype::I32);
  require_rank(args.offsets, 1);
  if (args.offsets.present && args.offsets.dim(0) < 1)
    base::fail("[take_rows] argument 'offsets' is empty, needed 1 element or more");
  switch (args.x.dtype) {
    case tensor::Dtype::U8:
      return &Take<uint8_t>::run;
    case tensor::Dtype::I32:
      return &Take<int32_t>::run;
    case tensor::Dtype::I64:
      return &Take<int64_t>::run;
    case tensor::Dtype::F32:
      return &Take<float>::run;
    case tensor::Dtype::F64:
      return &Take<double>::run;
    case tensor::Dtype::BF16:
    case tensor::Dtype::I16:
      break;
  }
  return nullptr;
}

}  // namespace pleat::kernels
