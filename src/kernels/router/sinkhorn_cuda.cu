#include <cooperative_groups.h>

#include "device/cuda/check.h"
#include "kernels/router/router_scratch.h"
#include "kernels/router/sinkhorn.cuh"
#include "kernels/router/sinkhorn.h"
#include "kernels/router/token.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kWarps = static_cast<int>(kSinkhornWarps), kThreads = 32 * kWarps;
constexpr int64_t kBlocks = kSinkhornBlocks;
constexpr double kFloor = 1e-8, kTolerance = 1e-4;

template <int P>
__device__ float row_factor(const float (&row)[P], const float* d1, int experts, int64_t num_valid,
                            int lane) {
  double sum = 0;
  PLEAT_EACH(j, P) if (lane + 32 * j < experts) {
    sum += static_cast<double>(__fmul_rn(d1[lane + 32 * j], row[j]));
  }
  sum = warp_sum(sum);
  return static_cast<float>(1.0 / (static_cast<double>(num_valid) * (sum + kFloor)));
}

// d1 [E] and partial [E, warps of the grid] are scratch.
template <int P>
__global__ void __launch_bounds__(kThreads)
    balance(const float* logits, const uint8_t* valid, int64_t num_tokens, int experts, float* keys,
            float* d1, double* partial) {
  extern __shared__ float previous[];  // [E]
  auto grid = cooperative_groups::this_grid();
  const int lane = threadIdx.x % 32;
  const int64_t warp = blockIdx.x * kWarps + threadIdx.x / 32, num_warps = gridDim.x * kWarps;
  const int64_t thread = blockIdx.x * kThreads + threadIdx.x, num_threads = gridDim.x * kThreads;

  int64_t num_valid = 0;
  for (int64_t t = threadIdx.x; t < num_tokens; t += kThreads) num_valid += valid[t] != 0;
  num_valid = max(int64_t{1}, block_sum<kThreads>(num_valid));
  for (int64_t i = thread; i < num_tokens * experts; i += num_threads) keys[i] = router_exp(logits[i]);
  for (int64_t e = thread; e < experts; e += num_threads) d1[e] = 1.0f;
  grid.sync();

  double change = 1e9;
  // A NaN change ends the loop, in all blocks alike.
  for (int round = 0; round < kMaxSinkhornRounds && change > kTolerance; ++round) {
    for (int e = threadIdx.x; e < experts; e += kThreads) previous[e] = d1[e];
    __syncthreads();
    double sums[P];
    PLEAT_EACH(j, P) sums[j] = 0;
    for (int64_t t = warp; t < num_tokens; t += num_warps) {
      if (!valid[t]) continue;
      float row[P];
      load_row(keys + t * experts, experts, lane, row);
      const float d0 = row_factor(row, previous, experts, num_valid, lane);
      PLEAT_EACH(j, P) sums[j] += static_cast<double>(__fmul_rn(d0, row[j]));
    }
    PLEAT_EACH(j, P) if (lane + 32 * j < experts) partial[(lane + 32 * j) * num_warps + warp] = sums[j];
    grid.sync();
    for (int e = blockIdx.x; e < experts; e += gridDim.x) {
      double sum = 0;
      for (int64_t i = threadIdx.x; i < num_warps; i += kThreads) sum += partial[e * num_warps + i];
      sum = block_sum<kThreads>(sum);
      if (threadIdx.x == 0) d1[e] = static_cast<float>(1.0 / (static_cast<double>(experts) * (sum + kFloor)));
    }
    grid.sync();
    double moved = 0;
    for (int e = threadIdx.x; e < experts; e += kThreads)
      moved += fabs(static_cast<double>(__fsub_rn(d1[e], previous[e])));
    change = block_sum<kThreads>(moved) / static_cast<double>(experts);
  }
  // The row factors of the last round belong to the column factors before it.
  for (int64_t t = warp; t < num_tokens; t += num_warps) {
    float row[P];
    load_row(keys + t * experts, experts, lane, row);
    const float d0 = row_factor(row, previous, experts, num_valid, lane);
    PLEAT_EACH(j, P) if (lane + 32 * j < experts) {
      keys[t * experts + lane + 32 * j] = __fmul_rn(__fmul_rn(d1[lane + 32 * j], row[j]), d0);
    }
  }
}

}  // namespace

CudaLaunch prepare_sinkhorn(const float* logits, const uint8_t* valid, int64_t num_tokens,
                            int64_t num_experts, float* keys, const Invocation& call,
                            device::cuda::Lane& lane) {
  auto* const sums = reinterpret_cast<double*>(call.scratch_for(sinkhorn_bytes(num_experts)));
  CudaLaunch out;
  with_elements_per_lane(num_experts, [&](auto per_lane) {
    constexpr int P = per_lane();
    out = [=, &lane] {
      double* partial = sums;
      float* d1 = reinterpret_cast<float*>(partial + num_experts * kBlocks * kWarps);
      int experts = static_cast<int>(num_experts);
      const float* from = logits;
      const uint8_t* counted = valid;
      int64_t tokens = num_tokens;
      float* to = keys;
      void* args[] = {&from, &counted, &tokens, &experts, &to, &d1, &partial};
      PLEAT_CUDA(cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&balance<P>), dim3(kBlocks),
                                             dim3(kThreads), args, static_cast<size_t>(num_experts) * 4,
                                             lane.stream()));
    };
  });
  return out;
}

}  // namespace pleat::kernels
