#include "kernels/embedding/embedding.h"

#include <algorithm>

#include "kernels/math/coords.h"
#include "kernels/math/require.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

// The first token of the table. The whole vocabulary is unknown where the table is a piece of it: a token
// past the last piece is in none of them.
int64_t first_token(const Invocation& call, const Arg& coords, int64_t table_rows) {
  const int32_t* tokens = call[0].as<int32_t>();
  for (int64_t t = 0; t < call[0].dim(0); ++t)
    if (tokens[t] < 0 || (!coords.present && tokens[t] >= table_rows))
      base::fail("[embedding] token {} at position {} is outside the vocabulary{}", tokens[t], t,
                 coords.present ? "" : fmt::format(" of {}", table_rows));
  return coords.present ? table_rows * coordinate("embedding", call, coords) : 0;
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const int32_t* tokens = call[0].as<int32_t>();
    const T* table = call[1].as<T>();
    T* y = call[3].as<T>();
    const int64_t num_tokens = call[0].dim(0), table_rows = call[1].dim(0), width = call[1].dim(1);
    const int64_t first = first_token(call, call[2], table_rows);
    const Tiling tiling = row_tiling(num_tokens, width);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        const int64_t row = tokens[t] - first;
        if (row < 0 || row >= table_rows) {
          std::fill_n(y + t * width, width, T(0));
        } else {
          std::copy_n(table + row * width, width, y + t * width);
        }
      }
    });
  }
};

template <class T>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const int32_t* tokens = call[0].as<int32_t>();
    const T* dy = call[1].as<T>();
    T* dtable = call[3].as<T>();
    const int64_t num_tokens = call[0].dim(0), table_rows = call[3].dim(0), width = call[3].dim(1);
    const bool overwrite = call[3].into() == Into::Overwrite;
    const int64_t first = first_token(call, call[2], table_rows), padding = padding_token(call);
    // Columns, not vocabulary ranges: token frequencies are far from even, columns always are.
    const Tiling tiling{width, 32};
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      const int64_t begin = tiling.begin(tile_idx), count = tiling.end(tile_idx) - begin;
      for (int64_t v = 0; overwrite && v < table_rows; ++v)
        std::fill_n(dtable + v * width + begin, count, T(0));
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t row = tokens[t] - first;
        if (row < 0 || row >= table_rows || tokens[t] == padding) continue;
        T* __restrict to = dtable + row * width + begin;
        const T* __restrict from = dy + t * width + begin;
        for (int64_t j = 0; j < count; ++j) to[j] += from[j];
      }
    });
  }
};

Kernel resolve_forward(const Invocation& call) {
  require_rank("embedding", "tokens", call[0], 1);
  require_rank("embedding", "table", call[1], 2);
  require_dtype("embedding", "tokens", call[0], tensor::Dtype::I32);
  require_coords("embedding", call, call[2]);
  require_shape("embedding", "y", call[3], {call[0].dim(0), call[1].dim(1)});
  require_same_dtype("embedding", call, {"", "table", "", "y"});
  return select_float<Forward>(call[1].dtype);
}

Kernel resolve_backward_weight(const Invocation& call) {
  require_rank("embedding", "tokens", call[0], 1);
  require_rank("embedding", "dtable", call[3], 2);
  require_dtype("embedding", "tokens", call[0], tensor::Dtype::I32);
  require_coords("embedding", call, call[2]);
  require_shape("embedding", "dy", call[1], {call[0].dim(0), call[3].dim(1)});
  require_same_dtype("embedding", call, {"", "dy", "", "dtable"});
  return select_float<BackwardWeight>(call[1].dtype);
}

}  // namespace

std::span<const Binding> embedding_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::embedding, Phase::Forward, resolve_forward},
      {KernelKind::embedding, Phase::BackwardWeight, resolve_backward_weight},
  };
  return rows;
}

}  // namespace pleat::kernels
