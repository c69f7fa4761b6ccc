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
    const T* x = call[0].as<T>();
    const int32_t* index = call[1].as<int32_t>();
    T* y = call[3].as<T>();
    const bool accumulate = call[3].into() == Into::Accumulate;
    const int64_t num_from = call[0].dim(0), width = width_of(call[0]);
    const int64_t rows = rows_to_write(call[2], call[3].dim(0));
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
  if (call[0].shape.size() != 1) require_rank("take_rows", "x", call[0], 2);
  require_rank("take_rows", "y", call[3], call[0].shape.size());
  if (call[0].shape.size() == 2) require_shape("take_rows", "y", call[3], {call[3].dim(0), call[0].dim(1)});
  require_dtype("take_rows", "y", call[3], call[0].dtype);
  require_dtype("take_rows", "index", call[1], tensor::Dtype::I32);
  require_shape("take_rows", "index", call[1], {call[3].dim(0)});
  require_dtype("take_rows", "offsets", call[2], tensor::Dtype::I32);
  require_rank("take_rows", "offsets", call[2], 1);
  if (call[2].present && call[2].dim(0) < 1)
    base::fail("[take_rows] argument 'offsets' is empty, needed 1 element or more");
  switch (call[0].dtype) {
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
