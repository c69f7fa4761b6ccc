#include "kernels/embedding/embedding.h"

#include <algorithm>

#include "kernels/math/coords.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

// The first token of the table. The whole vocabulary is unknown where the table is a piece of it: a token
// past the last piece is in none of them.
int64_t first_token(const Arg& tokens, const Arg& coords, int64_t table_rows, const Invocation& call) {
  const int32_t* ids = tokens.as<int32_t>();
  for (int64_t t = 0; t < tokens.dim(0); ++t)
    if (ids[t] < 0 || (!coords.present && ids[t] >= table_rows))
      refuse(tokens, "token {} at position {} is outside the vocabulary{}", ids[t], t,
             coords.present ? "" : fmt::format(" of {}", table_rows));
  return coords.present ? table_rows * coordinate(coords, call) : 0;
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::embedding::Forward<Arg> args(call.args);
    const int32_t* tokens = args.tokens.as<int32_t>();
    const T* table = args.table.as<T>();
    T* y = args.y.as<T>();
    const int64_t num_tokens = args.tokens.dim(0), table_rows = args.table.dim(0), width = args.table.dim(1);
    const int64_t first = first_token(args.tokens, args.coords, table_rows, call);
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
    const signature::embedding::BackwardWeight<Arg> args(call.args);
    const int32_t* tokens = args.tokens.as<int32_t>();
    const T* dy = args.dy.as<T>();
    T* dtable = args.dtable.as<T>();
    const int64_t num_tokens = args.tokens.dim(0), table_rows = args.dtable.dim(0),
                  width = args.dtable.dim(1);
    const bool overwrite = args.dtable.into() == Into::Overwrite;
    const int64_t first = first_token(args.tokens, args.coords, table_rows, call),
                  padding = padding_token(call);
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

constexpr Binding kTable[] = {
    row<signature::embedding::Forward, Forward>([](const auto& a) { return a.table.dtype; }),
    row<signature::embedding::BackwardWeight, BackwardWeight>(
        [](const auto& a) { return common_type(a.dtable, a.dy); }),
};

}  // namespace

std::span<const Binding> embedding_bindings() { return kTable; }

}  // namespace pleat::kernels
