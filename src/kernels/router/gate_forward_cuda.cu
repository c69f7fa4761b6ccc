// The gate's logits on tensor cores: bf16 operands, f32 sums. A tile of 128 tokens is made by the blocks of a
// cluster, each from a part of the depth, when tiles alone are too few to fill the device: each block then
// lays its sums into shared memory and adds up a share of the rows over all blocks, in the blocks' order.
#include "device/cuda/check.h"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/gate_ring.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kRows = 128, kDepth = 64, kBytesX = 2 * kBoxBytes;
constexpr int kMostParts = 8;  // blocks of a cluster, as many as every device of this kind takes

template <int kExperts_>
struct Tile {
  static constexpr int kExperts = kExperts_, kStride = kExperts + 8;  // of the sums; rows in different banks
  static constexpr int kStage = kBytesX + kExperts * 128,
                       kStages = std::min(kMostStages, kRingBytes / kStage);
  static_assert(kRows * kStride * 4 <= kRingBytes);
};

__device__ float4 add(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// Four floats at this address of block `block`'s shared memory.
__device__ float4 load_of_block(const float* at, int block) {
  float4 v;
  asm volatile(
      "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %4, %5;\n"
      " ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(shared_address(at)), "r"(block)
      : "memory");
  return v;
}

// The four floats at this address, added over blocks 0 to parts - 1. Between two cluster_sync.
__device__ float4 sum_of_blocks(const float* at, int parts) {
  float4 of[kMostParts];
#pragma unroll
  for (int b = 0; b < kMostParts; ++b)
    if (b < parts) of[b] = load_of_block(at, b);
  float4 sum = of[0];
#pragma unroll
  for (int b = 1; b < kMostParts; ++b)
    if (b < parts) sum = add(sum, of[b]);
  return sum;
}

// Blocks [tiles of tokens, parts, tiles of experts]; the parts of a tile are a cluster, their rank is
// blockIdx.y.
template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    forward(const __grid_constant__ CUtensorMap map_x, const __grid_constant__ CUtensorMap map_w,
            const bf16* bias, float* logits, int tokens, int width, int experts, int steps_per_part) {
  extern __shared__ std::byte raw[];
  Ring ring(raw, S::kStages, 8);  // every multiplying warp empties a stage
  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int t0 = static_cast<int>(blockIdx.x) * kRows, e0 = static_cast<int>(blockIdx.z) * S::kExperts;
  const int first = static_cast<int>(blockIdx.y) * steps_per_part,
            steps = max(0, min(steps_per_part, (width + kDepth - 1) / kDepth - first));
  float* const sums = reinterpret_cast<float*>(ring.stages);  // when the stages are used up
  if (warp >= 8) {
    if (warp == 8 && lane == 0)
      for (int k = 0; k < steps; ++k, ring.advance()) {
        uint64_t* const full = ring.claim(S::kStage);
        std::byte* const to = ring.stages + ring.stage * S::kStage;
        load_2d(to, &map_x, full, (first + k) * kDepth, t0);
        load_2d(to + kBytesX, &map_w, full, (first + k) * kDepth, e0);
      }
    __syncwarp();
  } else {
    const int half = warp / 4;
    float sum[S::kExperts / 2] = {};
    wgmma_pin(sum);
    int former = -1;
    for (int k = 0; k < steps; ++k, ring.advance()) {
      const std::byte* const stage = ring.stages + ring.stage * S::kStage;
      const uint64_t x = wgmma_tile(stage + half * kBoxBytes, false), w = wgmma_tile(stage + kBytesX, false);
      ring.wait_full();
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kDepth / 16; ++i)
        Wgmma<S::kExperts, 0, 0>::run(sum, wgmma_further(x, i * 32), wgmma_further(w, i * 32), 1);
      wgmma_commit();
      wgmma_wait<1>();
      if (former >= 0 && lane == 0) barrier_arrive(&ring.empty[former]);
      former = ring.stage;
    }
    wgmma_wait<0>();
    wgmma_pin(sum);
    named_barrier(1, 256);  // both warpgroups are done with the stages
#pragma unroll
    for (int j = 0; j < S::kExperts / 8; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower)
        *reinterpret_cast<float2*>(sums + (half * 64 + warp % 4 * 16 + lane / 4 + lower * 8) * S::kStride +
                                   j * 8 + lane % 4 * 2) =
            make_float2(sum[4 * j + 2 * lower], sum[4 * j + 2 * lower + 1]);
  }
  cluster_sync();  // the sums of all blocks are there
  constexpr int kQuads = S::kExperts / 4;
  const int parts = static_cast<int>(gridDim.y), rows = kRows / parts;
  for (int i = static_cast<int>(threadIdx.x); i < rows * kQuads; i += kThreads) {
    const int row = static_cast<int>(blockIdx.y) * rows + i / kQuads, t = t0 + row, e = e0 + i % kQuads * 4;
    if (t >= tokens || e >= experts) continue;  // experts are a multiple of 4
    float4 all = sum_of_blocks(sums + row * S::kStride + i % kQuads * 4, parts);
    if (bias)
      all = add(all, make_float4(to_float(bias[e]), to_float(bias[e + 1]), to_float(bias[e + 2]),
                                 to_float(bias[e + 3])));
    *reinterpret_cast<float4*>(logits + static_cast<int64_t>(t) * experts + e) = all;
  }
  cluster_sync();  // no block leaves while others read its sums
}

// Parts of the depth: as many as fill the multiprocessors, each worth filling its stages.
int64_t depth_parts(int64_t tiles, int64_t steps, int64_t sms) {
  int64_t parts = 1;
  while (parts < kMostParts && tiles * parts * 2 <= sms && steps >= parts * 2 * 4) parts *= 2;
  return parts;
}

template <class S>
CudaLaunch prepare(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias, const Arg& logits,
                   device::cuda::Lane& lane) {
  allow_shared(reinterpret_cast<const void*>(&forward<S>), kRingShared, "[router_gate] tiles");
  const int64_t row_tiles = ceil_div(shape.tokens, kRows),
                expert_tiles = ceil_div(shape.experts, S::kExperts);
  const int64_t steps = ceil_div(shape.width, kDepth),
                parts = depth_parts(row_tiles * expert_tiles, steps, device::cuda::facts().num_sms);
  MapShape of_x{shape.width, shape.tokens}, of_w{shape.width, shape.experts};
  of_x.box_y = kRows, of_w.box_y = S::kExperts;
  const CUtensorMap map_x = tensor_map(x.data, of_x), map_w = tensor_map(w.data, of_w);
  return [=, stream = lane.stream(), bias_ = bias.as<bf16>(), logits_ = logits.as<float>()] {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(row_tiles), static_cast<unsigned>(parts),
                          static_cast<unsigned>(expert_tiles));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kRingShared;
    config.stream = stream;
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
    cluster.val.clusterDim.y = config.gridDim.y;
    config.attrs = &cluster;
    config.numAttrs = 1;
    PLEAT_CUDA(cudaLaunchKernelEx(&config, forward<S>, map_x, map_w, bias_, logits_,
                                  static_cast<int>(shape.tokens), static_cast<int>(shape.width),
                                  static_cast<int>(shape.experts), static_cast<int>(ceil_div(steps, parts))));
  };
}

}  // namespace

CudaLaunch prepare_gate_forward(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias,
                                const Arg& logits, device::cuda::Lane& lane) {
  return shape.experts <= 64    ? prepare<Tile<64>>(shape, x, w, bias, logits, lane)
         : shape.experts <= 128 ? prepare<Tile<128>>(shape, x, w, bias, logits, lane)
                                : prepare<Tile<256>>(shape, x, w, bias, logits, lane);
}

}  // namespace pleat::kernels
