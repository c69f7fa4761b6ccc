// One matrix product per expert, cut into tiles that keep all threads busy however uneven the experts are.
#include "kernels/grouped_linear/grouped_linear.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "kernels/linear/gemm.h"
#include "kernels/math/reduce.h"
#include "kernels/math/tiles.h"
#include "kernels/router/router.h"
#include "kernels/router/type_pair.h"

namespace pleat::kernels {
namespace {

// Large enough for BLAS to run at its full rate (packing is paid per tile), small enough to share out.
constexpr int64_t kTileRows = 320;
constexpr int64_t kTileColumns = 512;
constexpr int64_t kWeightRows = 192;  // of dw
constexpr int64_t kWeightColumns = 256;

// [0, n) in blocks of nearly equal size, none larger than `largest`.
struct Blocks {
  int64_t n, count;
  Blocks(int64_t size, int64_t largest) : n(size), count(base::ceil_div(size, largest)) {}
  int64_t begin(int64_t i) const { return std::min(n, base::round_up(n * i / count, 16)); }
  int64_t end(int64_t i) const { return i + 1 == count ? n : begin(i + 1); }
};

// y = x op(w) over all experts: tiles of (expert, block of its rows, block of columns). finish(e, row,
// num_rows, column, num_columns) follows each tile while it is in the cache.
template <class C, class Finish>
void multiply_rows(const Invocation& call, const C* x, const C* w, const int32_t* offsets, C* y, int64_t E,
                   int64_t depth, int64_t width, Transpose transpose_w, int64_t w_stride,
                   const Finish& finish) {
  const Blocks columns(width, kTileColumns);
  int64_t first_tile[kMaxExperts + 1];
  first_tile[0] = 0;
  for (int64_t e = 0; e < E; ++e)
    first_tile[e + 1] =
        first_tile[e] + base::ceil_div(offsets[e + 1] - offsets[e], kTileRows) * columns.count;
  call.pool->for_each_tile(first_tile[E], [&](int64_t tile) {
    const int64_t e = std::upper_bound(first_tile, first_tile + E + 1, tile) - first_tile - 1;
    const Blocks rows(offsets[e + 1] - offsets[e], kTileRows);
    const int64_t in_expert = tile - first_tile[e], row_block = in_expert / columns.count,
                  column_block = in_expert % columns.count;
    const int64_t row = offsets[e] + rows.begin(row_block),
                  num_rows = rows.end(row_block) - rows.begin(row_block);
    const int64_t column = columns.begin(column_block), num_columns = columns.end(column_block) - column;
    const C* part = w + e * depth * width + (transpose_w == Transpose::Yes ? column * w_stride : column);
    gemm<C>(Transpose::No, transpose_w, num_rows, num_columns, depth, 1, x + row * depth, depth, part,
            w_stride, 0, y + row * width + column, width);
    finish(e, row, num_rows, column, num_columns);
  });
}

template <class C, class R>
struct Forward {
  static void run(const Invocation& call) {
    const signature::grouped_linear::Forward<Arg> args(call.args);
    const int64_t E = args.w.dim(0), out = args.w.dim(1), in = args.w.dim(2);
    const C* bias = args.bias.as<C>();
    const R* row_scale = args.row_scale.as<R>();
    C* y = args.y.as<C>();
    multiply_rows<C>(call, args.x.as<C>(), args.w.as<C>(), args.offsets.as<int32_t>(), y, E, in, out,
                     Transpose::Yes, in,
                     [=](int64_t e, int64_t row, int64_t num_rows, int64_t column, int64_t num_columns) {
                       if (!bias) return;
                       const C* __restrict add = bias + e * out + column;
                       for (int64_t r = row; r < row + num_rows; ++r) {
                         const C scale = row_scale ? static_cast<C>(row_scale[r]) : C(1);
                         C* __restrict to = y + r * out + column;
                         for (int64_t o = 0; o < num_columns; ++o) to[o] += add[o] * scale;
                       }
                     });
  }
};

template <class C, class R>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::grouped_linear::BackwardInput<Arg> args(call.args);
    const int64_t E = args.w.dim(0), out = args.w.dim(1), in = args.w.dim(2);
    const C* dy = args.dy.as<C>();
    const int32_t* offsets = args.offsets.as<int32_t>();
    multiply_rows<C>(call, dy, args.w.as<C>(), offsets, args.dx.as<C>(), E, out, in, Transpose::No, in,
                     [](int64_t, int64_t, int64_t, int64_t, int64_t) {});
    if (!args.drow_scale.present) return;
    const C* bias = args.bias.as<C>();
    R* drow_scale = args.drow_scale.as<R>();
    const bool add = args.drow_scale.into() == Into::Accumulate;
    const Tiling tiling = row_tiling(offsets[E], out);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile) {
      int64_t r = tiling.begin(tile);
      int64_t e = std::upper_bound(offsets, offsets + E + 1, static_cast<int32_t>(r)) - offsets - 1;
      for (; r < tiling.end(tile); ++r) {
        while (offsets[e + 1] <= r) ++e;
        const double sum = dot_of(dy + r * out, bias + e * out, out);
        drow_scale[r] = static_cast<R>(add ? static_cast<double>(drow_scale[r]) + sum : sum);
      }
    });
  }
};

// dbias (+)= sum over an expert's rows of dy * row_scale: tiles of (expert, block of columns), rows
// ascending.
template <class C, class R>
void sum_rows(const Invocation& call, const C* dy, const int32_t* offsets, const R* row_scale,
              const Arg& dbias) {
  const int64_t E = dbias.dim(0), out = dbias.dim(1);
  const bool add = dbias.into() == Into::Accumulate;
  const Tiling columns = column_tiling(out);
  call.pool->for_each_tile(E * columns.num_tiles(), [&](int64_t tile) {
    const int64_t e = tile / columns.num_tiles(), block = tile % columns.num_tiles();
    const int64_t begin = columns.begin(block), count = columns.end(block) - begin;
    C* to = dbias.as<C>() + e * out + begin;
    if (offsets[e] == offsets[e + 1] && add) return;
    double sum[kColumnTile] = {};
    for (int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      const double scale = row_scale ? static_cast<double>(row_scale[r]) : 1.0;
      const C* from = dy + r * out + begin;
      for (int64_t o = 0; o < count; ++o) sum[o] += static_cast<double>(from[o]) * scale;
    }
    for (int64_t o = 0; o < count; ++o)
      to[o] = static_cast<C>(add ? static_cast<double>(to[o]) + sum[o] : sum[o]);
  });
}

template <class C, class R>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const signature::grouped_linear::BackwardWeight<Arg> args(call.args);
    const C *dy = args.dy.as<C>(), *x = args.x.as<C>();
    const int32_t* offsets = args.offsets.as<int32_t>();
    C* dw = args.dw.as<C>();
    const bool add = args.dw.into() == Into::Accumulate;
    const int64_t E = args.dw.dim(0), out = args.dw.dim(1), in = args.dw.dim(2);
    const Blocks outs(out, kWeightRows), ins(in, kWeightColumns);
    const int64_t per_expert = outs.count * ins.count;
    // The expert with most rows first: what is left for the end is small.
    int32_t order[kMaxExperts];
    std::iota(order, order + E, 0);
    const auto rows_of = [offsets](int32_t e) { return offsets[e + 1] - offsets[e]; };
    std::sort(order, order + E, [&](int32_t a, int32_t b) {
      return rows_of(a) != rows_of(b) ? rows_of(a) > rows_of(b) : a < b;
    });
    call.pool->for_each_tile(E * per_expert, [&](int64_t tile) {
      const int64_t e = order[tile / per_expert], block = tile % per_expert;
      const int64_t o = outs.begin(block / ins.count), num_out = outs.end(block / ins.count) - o;
      const int64_t i = ins.begin(block % ins.count), num_in = ins.end(block % ins.count) - i;
      const int64_t row = offsets[e], num_rows = offsets[e + 1] - row;
      if (num_rows == 0 && add) return;
      gemm<C>(Transpose::Yes, Transpose::No, num_out, num_in, num_rows, 1, dy + row * out + o, out,
              x + row * in + i, in, add ? 1 : 0, dw + (e * out + o) * in + i, in);
    });
    if (args.dbias.present) sum_rows<C, R>(call, dy, offsets, args.row_scale.as<R>(), args.dbias);
  }
};

constexpr Binding kTable[] = {
    pair_row<signature::grouped_linear::Forward, Forward>([](const auto& a) {
      return TypePair{a.w.dtype, (a.row_scale.present ? a.row_scale : a.w).dtype};
    }),
    pair_row<signature::grouped_linear::BackwardInput, BackwardInput>([](const auto& a) {
      return TypePair{a.w.dtype, (a.drow_scale.present ? a.drow_scale : a.w).dtype};
    }),
    pair_row<signature::grouped_linear::BackwardWeight, BackwardWeight>([](const auto& a) {
      return TypePair{common_type(a.dw, a.x), (a.row_scale.present ? a.row_scale : a.x).dtype};
    }),
};

}  // namespace

std::span<const Binding> grouped_linear_bindings() { return kTable; }

}  // namespace pleat::kernels
