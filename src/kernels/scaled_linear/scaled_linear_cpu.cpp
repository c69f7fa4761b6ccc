#include "kernels/scaled_linear/scaled_linear.h"

#include <algorithm>

#include "kernels/quantize/code_values.h"
#include "program/limits.h"

namespace pleat::kernels {
namespace {

using tensor::Recipe;
using tensor::RecipeId;

constexpr Recipe kFp8 = tensor::recipe_of(RecipeId::Fp8);
constexpr int64_t kBlock = kFp8.block;
constexpr int64_t kTile = 32;  // rows and columns of a tile; its codes lie decoded on the stack

// One side of a product: rows of codes along the depth, each block with a scale.
struct Side {
  const uint8_t* codes;
  int64_t stride;  // from row to row
  const float* scale;
  int64_t rows_per_scale, scale_stride,
      block_stride;  // scale[row / rows_per_scale * scale_stride + block * block_stride]

  float scale_at(int64_t row, int64_t block) const {
    return scale[row / rows_per_scale * scale_stride + block * block_stride];
  }
  // The same from a row on, where every row has scales of its own.
  Side from(int64_t row) const {
    return {codes + row * stride, stride,       scale + row * scale_stride,
            rows_per_scale,       scale_stride, block_stride};
  }
};
Side by_rows(const Arg& codes, const Arg& scale) {
  return {static_cast<const uint8_t*>(codes.data), codes.dim(1), scale.as<float>(), 1, scale.dim(1), 1};
}
// Matrix `m` of a weight.
Side of_weight(const Arg& codes, const Arg& scale, int64_t m) {
  const size_t rank = codes.shape.size();
  const int64_t rows = codes.dim(rank - 2), depth = codes.dim(rank - 1), down = scale.dim(rank - 2),
                across = scale.dim(rank - 1);
  return {static_cast<const uint8_t*>(codes.data) + m * rows * depth,
          depth,
          scale.as<float>() + m * down * across,
          kFp8.weight_rows,
          across,
          1};
}
Side by_columns(const Arg& columns, const Arg& scale) {
  return {static_cast<const uint8_t*>(columns.data), columns.dim(0), scale.as<float>(), 1, 1, scale.dim(1)};
}

// c[i,j] = start(i,j) + a[row + i] . b[column + j] over depth [begin, end), which begins with a block.
template <class T, class Store>
void multiply_tile(const Side& a, int64_t row, int64_t rows, const Side& b, int64_t column, int64_t columns,
                   int64_t begin, int64_t end, const Store& store) {
  T sum[kTile][kTile] = {}, of_a[kTile][kBlock], of_b[kBlock][kTile];
  for (int64_t k = begin; k < end; k += kBlock) {
    const int64_t block = k / kBlock, depth = std::min(kBlock, end - k);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t d = 0; d < depth; ++d)
        of_a[i][d] = static_cast<T>(kE4m3Values[a.codes[(row + i) * a.stride + k + d]]);
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t d = 0; d < depth; ++d)
        of_b[d][j] = static_cast<T>(kE4m3Values[b.codes[(column + j) * b.stride + k + d]]);
    for (int64_t i = 0; i < rows; ++i) {
      T part[kTile] = {};
      for (int64_t d = 0; d < depth; ++d)
        for (int64_t j = 0; j < columns; ++j) part[j] += of_a[i][d] * of_b[d][j];
      const T scale = static_cast<T>(a.scale_at(row + i, block));
      for (int64_t j = 0; j < columns; ++j)
        sum[i][j] += part[j] * (scale * static_cast<T>(b.scale_at(column + j, block)));
    }
  }
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) store(i, j, sum[i][j]);
}

// All of a product [rows, columns] in tiles; tile(row, rows, column, columns).
template <class Tile>
void for_each_tile(const Invocation& call, int64_t rows, int64_t columns, const Tile& tile) {
  const int64_t down = base::ceil_div(rows, kTile), across = base::ceil_div(columns, kTile);
  call.pool->for_each_tile(down * across, [&](int64_t t) {
    const int64_t row = t / across * kTile, column = t % across * kTile;
    tile(row, std::min(kTile, rows - row), column, std::min(kTile, columns - column));
  });
}

// to [rows, columns] (+)= a b over depth [begin, end).
template <class T>
void multiply_into(const Invocation& call, const Side& a, const Side& b, int64_t rows, int64_t columns,
                   int64_t begin, int64_t end, Into into, T* to) {
  for_each_tile(call, rows, columns, [&](int64_t row, int64_t num_rows, int64_t column, int64_t num_columns) {
    multiply_tile<T>(a, row, num_rows, b, column, num_columns, begin, end, [&](int64_t i, int64_t j, T sum) {
      T& out = to[(row + i) * columns + column + j];
      out = into == Into::Accumulate ? out + sum : sum;
    });
  });
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::scaled_linear::Forward<Arg> args(call.args);
    const Side x = by_rows(args.x, args.x_scale), w = of_weight(args.w, args.w_scale, 0);
    const int64_t rows = args.y.dim(0), out = args.y.dim(1);
    const T *bias = args.bias.as<T>(), *residual = args.residual.as<T>();
    T* y = args.y.as<T>();
    for_each_tile(call, rows, out, [&](int64_t row, int64_t num_rows, int64_t column, int64_t num_columns) {
      multiply_tile<T>(x, row, num_rows, w, column, num_columns, 0, args.x.dim(1),
                       [&](int64_t i, int64_t j, T sum) {
                         const int64_t at = (row + i) * out + column + j;
                         y[at] = sum + (bias ? bias[column + j] : T(0)) + (residual ? residual[at] : T(0));
                       });
    });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::scaled_linear::BackwardInput<Arg> args(call.args);
    multiply_into<T>(call, by_rows(args.dy, args.dy_scale), of_weight(args.w, args.w_scale, 0),
                     args.dx.dim(0), args.dx.dim(1), 0, args.dy.dim(1), args.dx.into(), args.dx.as<T>());
  }
};

template <class T>
struct BackwardWeight {
  static void run(const Invocation& call) {
    const signature::scaled_linear::BackwardWeight<Arg> args(call.args);
    multiply_into<T>(call, by_columns(args.dy, args.dy_scale), by_columns(args.x, args.x_scale),
                     args.dw.dim(0), args.dw.dim(1), 0, args.dy.dim(0), args.dw.into(), args.dw.as<T>());
  }
};

// x by rows times the weight of each row's expert.
template <class T>
void multiply_groups(const Invocation& call, const Arg& x, const Arg& x_scale, const Arg& w,
                     const Arg& w_scale, const Arg& offsets, const Arg& y) {
  const int32_t* begin = offsets.as<int32_t>();
  const int64_t width = y.dim(1);
  for (int64_t e = 0; e < w.dim(0); ++e)
    multiply_into<T>(call, by_rows(x, x_scale).from(begin[e]), of_weight(w, w_scale, e),
                     begin[e + 1] - begin[e], width, 0, x.dim(1), Into::Overwrite,
                     y.as<T>() + begin[e] * width);
}

template <class T>
struct GroupedForward {
  static void run(const Invocation& call) {
    const signature::scaled_grouped_linear::Forward<Arg> a(call.args);
    multiply_groups<T>(call, a.x, a.x_scale, a.w, a.w_scale, a.offsets, a.y);
  }
};
template <class T>
struct GroupedBackwardInput {
  static void run(const Invocation& call) {
    const signature::scaled_grouped_linear::BackwardInput<Arg> a(call.args);
    multiply_groups<T>(call, a.dy, a.dy_scale, a.w, a.w_scale, a.offsets, a.dx);
  }
};
template <class T>
struct GroupedBackwardWeight {
  static void run(const Invocation& call) {
    const signature::scaled_grouped_linear::BackwardWeight<Arg> args(call.args);
    const Side dy = by_columns(args.dy, args.dy_scale), x = by_columns(args.x, args.x_scale);
    const int64_t E = args.dw.dim(0), out = args.dw.dim(1), in = args.dw.dim(2);
    for_each_expert(args.offsets.as<int32_t>(), E, kFp8.align, [&](int64_t e, int64_t begin, int64_t rows) {
      if (rows == 0 && args.dw.into() == Into::Accumulate) return;
      multiply_into<T>(call, dy, x, out, in, begin, base::round_up(begin + rows, kFp8.align), args.dw.into(),
                       args.dw.as<T>() + e * out * in);
    });
  }
};

// Codes of recipe fp8 alone.
template <template <class> class KernelFor>
Kernel select_fp8(const Invocation& call, tensor::Dtype dtype) {
  if (call.integer("recipe") != static_cast<int64_t>(RecipeId::Fp8)) return nullptr;
  return select_float<KernelFor>(dtype);
}
template <template <class> class Args, template <class> class KernelFor, class TypeOf>
constexpr Binding fp8_row(TypeOf) {
  return row<Args>(
      [](const Invocation& call) { return select_fp8<KernelFor>(call, TypeOf{}(Args<Arg>(call.args))); });
}

constexpr Binding kTable[] = {
    fp8_row<signature::scaled_linear::Forward, Forward>([](const auto& a) { return a.y.dtype; }),
    fp8_row<signature::scaled_linear::BackwardInput, BackwardInput>([](const auto& a) { return a.dx.dtype; }),
    fp8_row<signature::scaled_linear::BackwardWeight, BackwardWeight>(
        [](const auto& a) { return a.dw.dtype; }),
    fp8_row<signature::scaled_grouped_linear::Forward, GroupedForward>(
        [](const auto& a) { return a.y.dtype; }),
    fp8_row<signature::scaled_grouped_linear::BackwardInput, GroupedBackwardInput>(
        [](const auto& a) { return a.dx.dtype; }),
    fp8_row<signature::scaled_grouped_linear::BackwardWeight, GroupedBackwardWeight>(
        [](const auto& a) { return a.dw.dtype; }),
};

}  // namespace

std::span<const Binding> scaled_linear_bindings() { return kTable; }

}  // namespace pleat::kernels
