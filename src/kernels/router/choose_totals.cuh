// What all tokens of a choice add up to: loads are integers that blocks count together, statistics one
// partial result per block, which the last block adds in the order of blocks.
#pragma once

#include "kernels/cuda/counters.cuh"
#include "kernels/router/token.cuh"

namespace pleat::kernels::cuda {

struct alignas(16) ChoicePartial {
  double squares;
  float largest;
  int tokens;
};

// Where a launch counts: arrived [1] and counts [E] are Counters, partial [blocks] is scratch; load and stats
// are the results.
struct ChoiceTotals {
  int *arrived, *counts;
  ChoicePartial* partial;
  int64_t* load;
  double* stats;
  bool add_load, add_stats;
};

// Sums over a warp; `largest` is not negative.
__device__ inline ChoicePartial warp_total(ChoicePartial x) {
  x.squares = warp_sum(x.squares);
  x.largest = __uint_as_float(__reduce_max_sync(kAll, __float_as_uint(x.largest)));
  x.tokens = __reduce_add_sync(kAll, x.tokens);
  return x;
}

// The end of a block: `mine` [experts] in shared memory counts its choices, `of_lane` is each lane's share of
// the statistics. At most 32 warps.
__device__ inline void add_to_totals(const ChoiceTotals& to, int experts, const int* mine,
                                     ChoicePartial of_lane) {
  __shared__ ChoicePartial of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  of_lane = warp_total(of_lane);
  if (lane == 0) of_warp[warp] = of_lane;
  __syncthreads();
  const bool last_warp = warp == warps - 1;  // mostly one that counts no experts
  if (last_warp) {
    const ChoicePartial sum = warp_total(lane < warps ? of_warp[lane] : ChoicePartial{});
    if (lane == 0) to.partial[blockIdx.x] = sum;
  }
  for (int e = threadIdx.x; e < experts; e += blockDim.x)
    if (mine[e]) atomicAdd(&to.counts[e], mine[e]);
  if (!is_last_block(to.arrived)) return;

  for (int e = threadIdx.x; e < experts; e += blockDim.x) {
    const int count = __ldcg(to.counts + e);
    to.load[e] = (to.add_load ? to.load[e] : 0) + count;
    to.counts[e] = 0;
  }
  if (!last_warp) return;
  double before[3] = {0, 0, 0};
  if (to.add_stats) {
#pragma unroll
    for (int i = 0; i < 3; ++i) before[i] = to.stats[i];
  }
  ChoicePartial sum{};
#pragma unroll 4
  for (int b = lane; b < static_cast<int>(gridDim.x); b += 32) {
    const double2 of_block = __ldcg(reinterpret_cast<const double2*>(to.partial + b));
    const int64_t rest = __double_as_longlong(of_block.y);
    sum.squares += of_block.x;
    sum.largest = fmaxf(sum.largest, __int_as_float(static_cast<int>(rest)));
    sum.tokens += static_cast<int>(rest >> 32);
  }
  sum = warp_total(sum);
  if (lane != 0) return;
  const double largest = sum.largest;
  to.stats[0] = to.add_stats && !(before[0] < largest) ? before[0] : largest;
  to.stats[1] = before[1] + sum.squares;
  to.stats[2] = before[2] + static_cast<double>(static_cast<int64_t>(sum.tokens) * experts);
  if (!to.add_stats) to.stats[3] = 0;
}

}  // namespace pleat::kernels::cuda
