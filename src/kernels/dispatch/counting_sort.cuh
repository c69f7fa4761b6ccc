// Steps of a stable counting sort over many blocks. Items are cut into chunks of kChunkItems, one block each;
// every warp of a block takes a run of them, so (block, warp, position) is the order of the items.
#pragma once

#include <cstdint>

#include "kernels/cuda/reduce.cuh"

namespace pleat::kernels::cuda {

constexpr int kSortThreads = 256, kSortWarps = kSortThreads / 32;
constexpr int kItemsPerWarp = 128, kChunkItems = kItemsPerWarp * kSortWarps;

// counts[bucket] of this block's items, in shared memory; bucket(i) < 0 leaves item i out. For kThreads
// threads.
template <int kThreads, class Bucket>
__device__ void count_chunk(int64_t num_items, int num_buckets, Bucket bucket, int* counts) {
  for (int e = threadIdx.x; e < num_buckets; e += kThreads) counts[e] = 0;
  __syncthreads();
  const int64_t begin = blockIdx.x * static_cast<int64_t>(kChunkItems);
  for (int j = threadIdx.x; j < kChunkItems; j += kThreads) {
    if (begin + j >= num_items) break;
    const int e = bucket(begin + j);
    if (e >= 0) atomicAdd(&counts[e], 1);
  }
  __syncthreads();
}

// Calls place(i, position) for this block's items: start(bucket) plus the number of items of the
// bucket before i in this block; -1 for an item left out. `counts` [warps, buckets] is shared memory.
// All memory that is read is asked for first, and warps number their items while they wait for `start`.
template <class Bucket, class Start, class Place>
__device__ void place_chunk(int64_t num_items, int num_buckets, Bucket bucket, Start start, int* counts,
                            Place place) {
  constexpr int kRounds = kItemsPerWarp / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = blockIdx.x * static_cast<int64_t>(kChunkItems) + warp * kItemsPerWarp;
  int items[kRounds], within[kRounds];  // buckets; places among the warp's items of the bucket
#pragma unroll
  for (int j = 0; j < kRounds; ++j) {
    const int64_t i = begin + 32 * j + lane;
    items[j] = i < num_items ? bucket(i) : -1;
  }
  const int first_start = static_cast<int>(threadIdx.x) < num_buckets ? start(threadIdx.x) : 0;
  int* mine = counts + warp * num_buckets;
  for (int e = lane; e < num_buckets; e += 32) mine[e] = 0;
  unsigned same[kRounds];
#pragma unroll
  for (int j = 0; j < kRounds; ++j) same[j] = __match_any_sync(0xffffffffu, items[j]);
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kRounds; ++j) {
    const int before = __popc(same[j] & ((1u << lane) - 1)), so_far = items[j] >= 0 ? mine[items[j]] : 0;
    within[j] = so_far + before;
    __syncwarp();
    if (items[j] >= 0 && before == 0) mine[items[j]] = so_far + __popc(same[j]);
    __syncwarp();
  }
  __syncthreads();
  for (int e = threadIdx.x; e < num_buckets; e += kSortThreads) {
    int at = e < kSortThreads ? first_start : start(e), of_warp[kSortWarps];
#pragma unroll
    for (int w = 0; w < kSortWarps; ++w) of_warp[w] = counts[w * num_buckets + e];
#pragma unroll
    for (int w = 0; w < kSortWarps; ++w) {
      counts[w * num_buckets + e] = at;
      at += of_warp[w];
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kRounds; ++j) {
    const int64_t i = begin + 32 * j + lane;
    if (i < num_items) place(i, items[j] >= 0 ? mine[items[j]] + within[j] : -1);
  }
}

// Exclusive prefix sum of x over the block's threads; `total` gets the sum. All threads must take part.
template <int kThreads>
__device__ int block_scan(int x, int& total) {
  __shared__ int sums[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int inclusive = x;
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  __syncthreads();  // a former call's readers are done
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before + inclusive - x;
}

}  // namespace pleat::kernels::cuda
