// The gate's logits on tensor cores: bf16 operands, f32 sums. A tile of kRows tokens x kExperts experts is
// made by the blocks of a cluster, each from a part of the depth, when tiles alone are too few to fill the
// device.
#include "device/cuda/check.h"
#include "kernels/router/cluster_tile.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/mma.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kDepth = 64, kStrideIn = kDepth + 8;  // rows read by ldmatrix in different banks

// Warps of 32 tokens x kExperts / 2 experts.
template <int kRows_, int kExperts_>
struct Tile {
  static constexpr int kRows = kRows_, kExperts = kExperts_, kThreads = kRows * 2;
  static constexpr int kIn = kRows + kExperts;       // rows of a stage: x, then w
  static constexpr int kStages = kIn > 192 ? 3 : 4;  // two blocks fit on a multiprocessor
  static constexpr int kStage = kIn * kStrideIn;
  static constexpr int kShared = std::max(kStages * kStage * 2, kRows* tile_stride(kExperts) * 4);
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, 2)
    forward(const bf16* x, const bf16* w, const bf16* bias, float* logits, int tokens, int width, int experts,
            int steps_per_part) {
  extern __shared__ __align__(16) bf16 tiles[];
  constexpr int kN = S::kExperts / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int t0 = blockIdx.x * S::kRows, e0 = blockIdx.z * S::kExperts;
  const int m0 = warp / 2 * 32, n0 = warp % 2 * (S::kExperts / 2);
  const int first = blockIdx.y * steps_per_part,
            steps = max(0, min(steps_per_part, (width + kDepth - 1) / kDepth - first));

  const auto fill = [&](int step) {
    bf16* stage = tiles + step % S::kStages * S::kStage;
#pragma unroll
    for (int i = threadIdx.x; i < S::kIn * (kDepth / 8); i += S::kThreads) {
      const int row = i / (kDepth / 8), part = i % (kDepth / 8) * 8, column = (first + step) * kDepth + part;
      const bool of_x = row < S::kRows;
      const int source = of_x ? t0 + row : e0 + row - S::kRows;
      const bool there = column < width && source < (of_x ? tokens : experts);
      const bf16* from = (of_x ? x : w) + (there ? static_cast<int64_t>(source) * width + column : 0);
      copy_async(stage + row * kStrideIn + part, from, there);
    }
  };
  float sum[2][kN][4] = {};
#pragma unroll
  for (int s = 0; s < S::kStages - 1; ++s) {
    if (s < steps) fill(s);
    commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    wait_copies<S::kStages - 2>();
    __syncthreads();  // the stage is full, and all are done with the one that is filled next
    if (step + S::kStages - 1 < steps) fill(step + S::kStages - 1);
    commit_copies();
    const bf16* tile_x = tiles + step % S::kStages * S::kStage;
    const bf16* tile_w = tile_x + S::kRows * kStrideIn;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[2][4];
      load_a(a[0], tile_x, kStrideIn, m0, k, lane);
      load_a(a[1], tile_x, kStrideIn, m0 + 16, k, lane);
#pragma unroll
      for (int n = 0; n < kN; n += 2) {
        uint32_t b[4];
        load_b(b, tile_w, kStrideIn, n0 + n * 8, k, lane);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(sum[m][n], a[m], b[0], b[1]);
          multiply_add(sum[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  wait_copies<0>();
  __syncthreads();  // the stages are free
  constexpr int kStride = tile_stride(S::kExperts), kQuads = S::kExperts / 4;
  float* sums = reinterpret_cast<float*>(tiles);
  put_sums(sums, kStride, sum, m0, n0, lane);
  cluster_sync();  // the sums of all blocks are there
  const int parts = gridDim.y, rows = S::kRows / parts;
  for (int i = threadIdx.x; i < rows * kQuads; i += S::kThreads) {
    const int row = blockIdx.y * rows + i / kQuads, t = t0 + row, e = e0 + i % kQuads * 4;
    const float4 all = sum_of_blocks(sums + row * kStride + i % kQuads * 4, parts);
    if (t >= tokens) continue;
    float value[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (bias && e + j < experts) value[j] += to_float(bias[e + j]);
    float* to = logits + static_cast<int64_t>(t) * experts + e;
    if (experts % 4 == 0) {
      if (e < experts) *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (e + j < experts) to[j] = value[j];
    }
  }
  cluster_sync();  // no block leaves while others read its sums
}

// Parts of the depth: as many as fill two blocks on each of 132 multiprocessors, each worth filling its
// stages.
int64_t depth_parts(int64_t tiles, int64_t steps) {
  int64_t parts = 1;
  while (parts < kMostParts && tiles * parts * 2 <= 264 && steps >= parts * 2 * 4) parts *= 2;
  return parts;
}

template <class S>
CudaLaunch prepare(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias, const Arg& logits,
                   device::cuda::Lane& lane) {
  PLEAT_CUDA(cudaFuncSetAttribute(forward<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
  const int64_t row_tiles = ceil_div(shape.tokens, S::kRows),
                expert_tiles = ceil_div(shape.experts, S::kExperts);
  const int64_t steps = ceil_div(shape.width, kDepth), parts = depth_parts(row_tiles * expert_tiles, steps);
  return [=, stream = lane.stream(), x_ = x.as<bf16>(), w_ = w.as<bf16>(), bias_ = bias.as<bf16>(),
          logits_ = logits.as<float>()] {
    if (shape.tokens == 0) return;
    const dim3 blocks(static_cast<unsigned>(row_tiles), static_cast<unsigned>(parts),
                      static_cast<unsigned>(expert_tiles));
    launch_in_clusters(forward<S>, blocks, S::kThreads, S::kShared, stream, x_, w_, bias_, logits_,
                       static_cast<int>(shape.tokens), static_cast<int>(shape.width),
                       static_cast<int>(shape.experts), static_cast<int>(ceil_div(steps, parts)));
  };
}

}  // namespace

CudaLaunch prepare_gate_mma_forward(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias,
                                    const Arg& logits, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_expert_tile(shape.experts, [&](auto tile) {
    constexpr int kExperts = tile();
    // Every tile of tokens reads w once more; with tokens enough for it, tiles are larger.
    out = ceil_div(shape.tokens, 128) * ceil_div(shape.experts, kExperts) >= 128
              ? prepare<Tile<128, kExperts>>(shape, x, w, bias, logits, lane)
              : prepare<Tile<64, kExperts>>(shape, x, w, bias, logits, lane);
  });
  return out;
}

}  // namespace pleat::kernels
