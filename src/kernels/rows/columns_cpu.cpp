// Columns cut out of rows and put beside each other: columns, split_heads and merge_heads.
//
// All of them copy runs of bytes between two row lengths, so the element type only decides sizes.
#include <cstring>

#include "kernels/math/tiles.h"
#include "kernels/rows/contract.h"
#include "kernels/rows/rows.h"

namespace pleat::kernels {
namespace {

// Columns from `begin` on of rows of `width`, both in bytes.
template <class Byte>
struct Columns {
  Byte* rows;
  int64_t width, begin;
  Byte* at(int64_t row) const { return rows + row * width + begin; }
};

void copy_columns(Columns<const std::byte> from, Columns<std::byte> to, int64_t count, int64_t row) {
  if (count > 0) std::memcpy(to.at(row), from.at(row), static_cast<size_t>(count));
}

const std::byte* bytes_of(const Arg& arg) { return static_cast<const std::byte*>(arg.data); }
std::byte* target_of(const Arg& arg) { return static_cast<std::byte*>(arg.data); }

void run_columns(const Invocation& call) {
  const signature::columns::Forward<Arg> args(call.args);
  const int64_t rows = args.x.dim(0), item = tensor::size_of(args.x.dtype);
  const int64_t count = args.y.dim(1) * item;
  const Columns<const std::byte> from{bytes_of(args.x), args.x.dim(1) * item, call.integer("begin") * item};
  const Columns<std::byte> to{target_of(args.y), count, 0};
  const Tiling tiling = row_tiling(rows, args.y.dim(1));
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) copy_columns(from, to, count, t);
  });
}

void run_join(const Invocation& call) {
  const signature::columns::BackwardInput<Arg> args(call.args);
  const int64_t rows = args.y.dim(0), item = tensor::size_of(args.y.dtype);
  const int64_t a = args.a.dim(1) * item, b = args.b.dim(1) * item;
  const Tiling tiling = row_tiling(rows, args.y.dim(1));
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
      copy_columns({bytes_of(args.a), a, 0}, {target_of(args.y), a + b, 0}, a, t);
      copy_columns({bytes_of(args.b), b, 0}, {target_of(args.y), a + b, a}, b, t);
    }
  });
}

// Between rows of `whole` columns and n blocks of rows of whole / n columns, in either direction.
template <bool kSplit>
void copy_heads(const Invocation& call, const Arg& joined, const Arg& cut) {
  const HeadWidths h(call);
  const int64_t rows = joined.dim(0), item = tensor::size_of(joined.dtype);
  const int64_t whole = h.whole * item, narrow = whole / h.parts;
  const Tiling tiling = row_tiling(rows, h.whole);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    for (int64_t part = 0; part < h.parts; ++part)
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        int64_t joined_begin = 0, cut_begin = part * rows * narrow;
        for (const int64_t columns : h.widths) {
          const int64_t width = columns * item, count = width / h.parts;
          const int64_t at = joined_begin + part * count;
          if constexpr (kSplit)
            copy_columns({bytes_of(joined), whole, at}, {target_of(cut), narrow, cut_begin}, count, t);
          else
            copy_columns({bytes_of(cut), narrow, cut_begin}, {target_of(joined), whole, at}, count, t);
          joined_begin += width;
          cut_begin += count;
        }
      }
  });
}

// Args: the row of either phase.
template <template <class> class Args>
void run_split_heads(const Invocation& call) {
  const Args<Arg> args(call.args);
  copy_heads<true>(call, args.x, args.y);
}

template <template <class> class Args>
void run_merge_heads(const Invocation& call) {
  const Args<Arg> args(call.args);
  copy_heads<false>(call, args.y, args.x);
}

constexpr Binding kTable[] = {
    row<signature::columns::Forward, run_columns>(),
    row<signature::columns::BackwardInput, run_join>(),
    row<signature::split_heads::Forward, run_split_heads<signature::split_heads::Forward>>(),
    row<signature::split_heads::BackwardInput, run_split_heads<signature::split_heads::BackwardInput>>(),
    row<signature::merge_heads::Forward, run_merge_heads<signature::merge_heads::Forward>>(),
    row<signature::merge_heads::BackwardInput, run_merge_heads<signature::merge_heads::BackwardInput>>(),
};

}  // namespace

std::span<const Binding> columns_bindings() { return kTable; }

}  // namespace pleat::kernels
