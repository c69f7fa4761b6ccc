// The gradient of the gate's weight on tensor cores: sums over runs of tokens, kExperts experts x 128 columns
// per block. A gradient of logits is f32 and enters as the sum of two bf16 numbers.
#include "device/cuda/check.h"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/mma.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kPad = 8;  // elements after each row of a tile
constexpr int kThreads = 256, kColumns = 128, kTokens = 32, kStages = 3;
constexpr int kXStride = kColumns + kPad;

template <int kExperts>
constexpr int kShared = (kStages * kTokens * kXStride + 2 * kTokens * (kExperts + kPad)) * 2;

template <int kExperts>
__global__ void __launch_bounds__(kThreads)
    backward_weight(const float* dlogits, const bf16* x, float* partial, int tokens, int width, int experts,
                    int tokens_per_split) {
  extern __shared__ __align__(16) bf16 tiles[];
  constexpr int kWarpRows = kExperts / 32, kWarpColumns = 8 / kWarpRows;  // warps across experts, columns
  constexpr int kFragments = kColumns / kWarpColumns / 8;
  constexpr int kStride = kExperts + kPad, kPairs = kTokens * kExperts / 2 / kThreads;  // of a thread
  bf16 *high = tiles + kStages * kTokens * kXStride, *low = high + kTokens * kStride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int c0 = blockIdx.x * kColumns, e0 = blockIdx.y * kExperts;
  const int begin = blockIdx.z * tokens_per_split, end = min(tokens, begin + tokens_per_split);
  const int m0 = warp / kWarpColumns * 32, n0 = warp % kWarpColumns * (kFragments * 8);

  const auto fill = [&](int step) {
    bf16* stage = tiles + step % kStages * kTokens * kXStride;
    for (int i = threadIdx.x; i < kTokens * (kColumns / 8); i += kThreads) {
      const int row = i / (kColumns / 8), part = i % (kColumns / 8) * 8;
      const int t = begin + step * kTokens + row;
      const bool there = t < end && c0 + part < width;
      copy_async(stage + row * kXStride + part, x + (there ? static_cast<int64_t>(t) * width + c0 + part : 0),
                 there);
    }
  };
  float d[kPairs][2];
  const auto load_gradients = [&](int step) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = (i * kThreads + threadIdx.x) * 2 + j, t = begin + step * kTokens + at / kExperts,
                  e = e0 + at % kExperts;
        d[i][j] = t < end && e < experts ? dlogits[static_cast<int64_t>(t) * experts + e] : 0.0f;
      }
  };
  float sum[2][kFragments][4] = {};
  const int steps = end > begin ? (end - begin + kTokens - 1) / kTokens : 0;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) fill(s);
    commit_copies();
  }
  if (steps > 0) load_gradients(0);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // x is there, and all are done with the last step's tiles
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int at = (i * kThreads + threadIdx.x) * 2, to = at / kExperts * kStride + at % kExperts;
      split(d[i][0], d[i][1], *reinterpret_cast<uint32_t*>(high + to),
            *reinterpret_cast<uint32_t*>(low + to));
    }
    if (step + kStages - 1 < steps) fill(step + kStages - 1);
    commit_copies();
    __syncthreads();
    if (step + 1 < steps) load_gradients(step + 1);
    const bf16* stage = tiles + step % kStages * kTokens * kXStride;
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
      uint32_t a[2][4], rest[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_a_transposed(a[m], high, kStride, m0 + m * 16, k, lane);
        load_a_transposed(rest[m], low, kStride, m0 + m * 16, k, lane);
      }
#pragma unroll
      for (int n = 0; n < kFragments; n += 2) {
        uint32_t b[4];
        load_b_transposed(b, stage, kXStride, n0 + n * 8, k, lane);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(sum[m][n], a[m], b[0], b[1]);
          multiply_add(sum[m][n], rest[m], b[0], b[1]);
          multiply_add(sum[m][n + 1], a[m], b[2], b[3]);
          multiply_add(sum[m][n + 1], rest[m], b[2], b[3]);
        }
      }
    }
  }
  float* to = partial + static_cast<int64_t>(blockIdx.z) * experts * width;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kFragments; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = e0 + m0 + m * 16 + lane / 4 + half * 8, c = c0 + n0 + n * 8 + lane % 4 * 2;
        if (e < experts && c < width)  // the width is a multiple of 8
          *reinterpret_cast<float2*>(to + static_cast<int64_t>(e) * width + c) =
              make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
      }
}

}  // namespace

PartialLaunch prepare_gate_mma_backward_weight(const GateShape& shape, const Arg& dlogits, const Arg& x,
                                               int64_t splits, device::cuda::Lane& lane) {
  PartialLaunch out;
  with_expert_tile(shape.experts, [&](auto tile) {
    constexpr int kExperts = tile();
    PLEAT_CUDA(cudaFuncSetAttribute(backward_weight<kExperts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kShared<kExperts>));
    const float* dlogits_ = dlogits.as<float>();
    const bf16* x_ = x.as<bf16>();
    const int64_t per_split = ceil_div(ceil_div(shape.tokens, splits), kTokens) * kTokens;
    out = [=, stream = lane.stream()](float* partial) {
      const dim3 blocks(static_cast<unsigned>(ceil_div(shape.width, kColumns)),
                        static_cast<unsigned>(ceil_div(shape.experts, kExperts)),
                        static_cast<unsigned>(splits));
      backward_weight<kExperts><<<blocks, kThreads, kShared<kExperts>, stream>>>(
          dlogits_, x_, partial, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
          static_cast<int>(shape.experts), static_cast<int>(per_split));
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

}  // namespace pleat::kernels
