// Sums over rows, one per column: gradients of norms, biases and gates.
//
// Blocks of rows give partial sums in scratch, which a second launch adds up in double, in ascending order.
// How rows are cut follows from the shape alone (kernels/cuda/scratch.h).
#pragma once

#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/bind.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda {

// Where the sums go; an Arg, whose shape may be gone when the launch runs, in numbers.
struct SumTarget {
  void* data;
  tensor::Dtype dtype;
  int64_t width;
  bool accumulate;
  explicit SumTarget(const Arg& arg)
      : data(arg.data), dtype(arg.dtype), width(arg.size()), accumulate(arg.into() == Into::Accumulate) {}
};

template <class T>
struct SumColumns {
  T* to;
  int64_t width;
  bool accumulate;
};

// out[j] (+)= sum over p of parts[p * stride + j], for the columns of `first` and behind them those of
// `second`. Blocks of 32 columns by 32 parts.
template <class T>
__global__ void __launch_bounds__(1024) reduce_parts(const float* parts, int num_parts, int64_t stride,
                                                     SumColumns<T> first, SumColumns<T> second) {
  __shared__ double tile[32][33];
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  const int64_t column = blockIdx.x * static_cast<int64_t>(32) + x, width = first.width + second.width;
  double sum = 0;
  if (column < width) {
#pragma unroll 16
    for (int p = y; p < num_parts; p += 32) sum += static_cast<double>(parts[p * stride + column]);
  }
  tile[y][x] = sum;
  __syncthreads();
  if (y != 0 || column >= width) return;
  for (int i = 1; i < 32; ++i) sum += tile[i][x];
  const bool in_first = column < first.width;
  T& to = in_first ? first.to[column] : second.to[column - first.width];
  if (in_first ? first.accumulate : second.accumulate) sum += static_cast<double>(to_float(to));
  to = from_float<T>(static_cast<float>(sum));
}

// A second target lies behind the first in the parts.
inline void launch_reduce_parts(CUstream_st* stream, const float* parts, int num_parts, int64_t stride,
                                const SumTarget& first, const SumTarget* second = nullptr) {
  if (second && second->dtype != first.dtype) {
    launch_reduce_parts(stream, parts + first.width, num_parts, stride, *second);
    second = nullptr;
  }
  const int64_t width = first.width + (second ? second->width : 0);
  if (width == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(width, 32));
  with_float(first.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto columns = [](const SumTarget* of) {
      return of ? SumColumns<T>{static_cast<T*>(of->data), of->width, of->accumulate} : SumColumns<T>{};
    };
    reduce_parts<T><<<blocks, 1024, 0, stream>>>(parts, num_parts, stride, columns(&first), columns(second));
    PLEAT_CUDA_LAUNCHED();
  });
}

// Load: `Raw raw(row, column)` reads what N columns of a row need, `add(raw, sums)` adds their values.
template <int N, class Load>
__global__ void __launch_bounds__(32 * kSumLanes)
    sum_columns(Load load, int64_t rows, int64_t width, int64_t rows_per_block, float* parts) {
  constexpr int kAhead = 4;  // rows in flight
  __shared__ float tile[kSumLanes][32 * N];
  const int x = threadIdx.x % 32, y = threadIdx.x / 32;
  const int64_t first_column = blockIdx.x * static_cast<int64_t>(32 * N), column = first_column + x * N;
  float sums[N] = {};
  if (column < width) {
    const int64_t begin = blockIdx.y * rows_per_block;
    const int64_t end = begin + rows_per_block < rows ? begin + rows_per_block : rows;
    int64_t row = begin + y;
    for (; row + (kAhead - 1) * kSumLanes < end; row += kAhead * kSumLanes) {
      typename Load::Raw raw[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) raw[i] = load.raw(row + i * kSumLanes, column);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) load.add(raw[i], sums);
    }
    for (; row < end; row += kSumLanes) load.add(load.raw(row, column), sums);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) tile[y][x * N + j] = sums[j];
  __syncthreads();
  for (int j = threadIdx.x; j < 32 * N; j += 32 * kSumLanes) {
    if (first_column + j >= width) return;
    float sum = tile[0][j];
#pragma unroll
    for (int i = 1; i < kSumLanes; ++i) sum += tile[i][j];
    parts[blockIdx.y * width + first_column + j] = sum;
  }
}

// Enqueues out (+)= column sums of what `load` reads. `parts` has column_sum_bytes.
template <int N, class Load>
void launch_column_sums(CUstream_st* stream, Load load, int64_t rows, float* parts, const SumTarget& out) {
  const int64_t width = out.width;
  if (width == 0) return;
  const SumPlan plan = sum_plan(rows);
  if (plan.row_blocks > 0) {
    const dim3 grid(static_cast<unsigned>(ceil_div(width, 32 * N)), static_cast<unsigned>(plan.row_blocks));
    sum_columns<N, Load><<<grid, 32 * kSumLanes, 0, stream>>>(load, rows, width, plan.rows_per_block, parts);
    PLEAT_CUDA_LAUNCHED();
  }
  launch_reduce_parts(stream, parts, static_cast<int>(plan.row_blocks), width, out);
}

}  // namespace pleat::kernels::cuda
