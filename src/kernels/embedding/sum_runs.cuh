// Sums of dy's rows over runs of equal tokens, in ascending position, without atomics.
//
// The sorted list is cut into tiles. A block sums the runs of its tile; runs that lie in one tile go straight
// to the table, the pieces of runs that cross tiles wait in scratch for a last launch that adds them in
// order. So one read of dy and one write of the table, however uneven the tokens are.
#pragma once

#include "device/cuda/check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/embedding/embedding_scratch.h"
#include "kernels/embedding/token_rows.cuh"

namespace pleat::kernels::cuda {

constexpr int kSumThreads = 128, kTile = static_cast<int>(EmbeddingScratch::kTileTokens);

// N columns of a row, in accesses of at most 16 bytes.
template <class D, int N>
struct Columns {
  static constexpr int kRun = N < kWide<D> ? N : kWide<D>;
  Pack<D, kRun> part[N / kRun];
  __device__ void load(const D* from) {
#pragma unroll
    for (int i = 0; i < N / kRun; ++i) part[i] = Pack<D, kRun>::load(from + i * kRun);
  }
  __device__ void add_to(float (&sum)[N]) const {
#pragma unroll
    for (int i = 0; i < N / kRun; ++i) {
      float x[kRun];
      part[i].get(x);
#pragma unroll
      for (int j = 0; j < kRun; ++j) sum[i * kRun + j] += x[j];
    }
  }
  __device__ static void store(const float (&sum)[N], D* to) {
#pragma unroll
    for (int i = 0; i < N / kRun; ++i) {
      float x[kRun];
#pragma unroll
      for (int j = 0; j < kRun; ++j) x[j] = sum[i * kRun + j];
      Pack<D, kRun> pack;
      pack.set(x);
      store_streaming(pack, to + i * kRun);
    }
  }
};

template <class T, class D>
struct RunSums {
  SortedTokens sorted;
  const T* dy;
  D* dtable;
  float* pieces;  // [tiles, 2, width]: of the run that came in, of the run that goes on
  int64_t width;
  unsigned column_blocks;
  __device__ int64_t tile() const { return blockIdx.x / column_blocks; }
  template <int N>
  __device__ int64_t column() const {
    return (blockIdx.x % column_blocks * static_cast<int64_t>(kSumThreads) + threadIdx.x) * N;
  }
};

// Where the sum up to an entry goes: a row of the table, or one of these.
constexpr int kNowhere = -1, kCameIn = -2, kGoesOn = -3;

// Blocks: column_blocks of every tile.
template <class T, class D, int N, bool kAdd>
__global__ void __launch_bounds__(kSumThreads) sum_tile(RunSums<T, D> a) {
  constexpr int kAhead = kAdd ? 4 : 8;
  // Rows of dy and of the table. Entries without a row of the table come last; what they add goes nowhere.
  __shared__ int32_t from[kTile], to[kTile];
  const int begin = static_cast<int>(a.tile()) * kTile, former = a.sorted.key(begin - 1);
  if (threadIdx.x < kTile) {
    const int i = begin + static_cast<int>(threadIdx.x), key = a.sorted.key(i);
    const bool has_row = key >= 0 && key < a.sorted.table_rows, goes_on = a.sorted.key(i + 1) == key;
    from[threadIdx.x] = a.sorted.order[min(i, a.sorted.num_tokens - 1)];
    to[threadIdx.x] = !has_row || (goes_on && threadIdx.x < kTile - 1) ? kNowhere
                      : key == former                                  ? kCameIn
                      : goes_on                                        ? kGoesOn
                                                                       : key;
  }
  __syncthreads();
  const int64_t column = a.template column<N>();
  if (column >= a.width || a.sorted.keys[begin] >= a.sorted.table_rows) return;
  float sum[N] = {};
  for (int first = 0; first < kTile; first += kAhead) {
    Pack<T, N> held[kAhead];
    Columns<D, N> old[kAdd ? kAhead : 1];  // asked for with dy: the list tells in advance what a run ends in
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      held[i] = load_streaming<Pack<T, N>>(a.dy + from[first + i] * a.width + column);
      if constexpr (kAdd)
        if (const int target = to[first + i]; target >= 0) old[i].load(a.dtable + target * a.width + column);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float d[N];
      held[i].get(d);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += d[j];
      const int target = to[first + i];
      if (target == kNowhere) continue;
      if (target >= 0) {
        if constexpr (kAdd) old[i].add_to(sum);
        Columns<D, N>::store(sum, a.dtable + target * a.width + column);
      } else {
        const int64_t piece = a.tile() * 2 + (target == kGoesOn ? 1 : 0);
        Columns<float, N>::store(sum, a.pieces + piece * a.width + column);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] = 0;
    }
  }
}

// The run that starts in the block's tile and goes on: its pieces in order.
template <class T, class D, int N>
__global__ void __launch_bounds__(kSumThreads) sum_pieces(RunSums<T, D> a, bool accumulate) {
  const int begin = static_cast<int>(a.tile()) * kTile, next = begin + kTile;
  const int key = a.sorted.key(next - 1);
  if (key < 0 || key >= a.sorted.table_rows || a.sorted.key(next) != key) return;
  // It started here unless all of the tile and the entry before it are this key.
  if (a.sorted.key(begin) == key && a.sorted.key(begin - 1) == key) return;
  // All tiles it goes on in, so that their pieces can be asked for together.
  int more = 0, found;
  do {
    const int64_t i = next + (static_cast<int64_t>(more) + threadIdx.x) * kTile;
    found = __syncthreads_count(i < a.sorted.num_tokens && a.sorted.keys[i] == key);
    more += found;
  } while (found == kSumThreads);
  const int64_t column = a.template column<N>();
  if (column >= a.width) return;
  D* row = a.dtable + key * a.width + column;
  Columns<D, N> old;
  if (accumulate) old.load(row);
  Columns<float, N> piece;
  piece.load(a.pieces + (a.tile() * 2 + 1) * a.width + column);
  float sum[N] = {};
  piece.add_to(sum);
#pragma unroll 8
  for (int64_t tile = a.tile() + 1; tile <= a.tile() + more; ++tile) {
    Columns<float, N> came;
    came.load(a.pieces + tile * 2 * a.width + column);
    came.add_to(sum);
  }
  if (accumulate) old.add_to(sum);
  Columns<D, N>::store(sum, row);
}

// Enqueues dtable[row] (+)= sums, for the rows that have tokens. N columns of dy are 16 bytes, or one.
template <int N, class T, class D>
void launch_run_sums(CUstream_st* stream, RunSums<T, D> a, bool accumulate) {
  const int64_t tiles = ceil_div(a.sorted.num_tokens, kTile), columns = ceil_div(a.width, kSumThreads * N);
  a.column_blocks = static_cast<unsigned>(columns);
  const auto blocks = static_cast<unsigned>(tiles * columns);
  if (accumulate)
    sum_tile<T, D, N, true><<<blocks, kSumThreads, 0, stream>>>(a);
  else
    sum_tile<T, D, N, false><<<blocks, kSumThreads, 0, stream>>>(a);
  PLEAT_CUDA_LAUNCHED();
  sum_pieces<T, D, N><<<blocks, kSumThreads, 0, stream>>>(a, accumulate);
  PLEAT_CUDA_LAUNCHED();
}

}  // namespace pleat::kernels::cuda
