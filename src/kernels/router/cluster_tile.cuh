// A tile of f32 sums that the blocks of a cluster made from different parts of the depth: each block lays its
// own into shared memory, and each then adds up a share of the rows over all blocks, in the blocks' order.
#pragma once

#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/ptx.cuh"

namespace pleat::kernels::cuda::gate {

constexpr int kMostParts = 8;  // blocks of a cluster, as many as every device of this kind takes

// Floats from row to row; eight rows of fragments fall into different banks for widths of 32 and its
// multiples.
constexpr int tile_stride(int columns) { return columns + 8; }

// A warp's sums at rows m0 and columns n0 on.
template <int kM, int kN>
__device__ inline void put_sums(float* tile, int stride, const float (&sum)[kM][kN][4], int m0, int n0,
                                int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<float2*>(tile + (m0 + m * 16 + half * 8 + lane / 4) * stride + n0 + n * 8 +
                                   lane % 4 * 2) = make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
}

__device__ inline float4 add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four floats at this address of block `block`'s shared memory.
__device__ inline float4 load_of_block(const float* at, int block) {
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
__device__ inline float4 sum_of_blocks(const float* at, int parts) {
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

// Blocks [tiles, parts, more]; the `parts` blocks of a tile are a cluster, and their rank is blockIdx.y.
template <class Kernel, class... Args>
void launch_in_clusters(Kernel kernel, dim3 blocks, int threads, int shared, CUstream_st* stream,
                        Args... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
  cluster.val.clusterDim.y = blocks.y;
  config.attrs = &cluster;
  config.numAttrs = 1;
  PLEAT_CUDA(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace pleat::kernels::cuda::gate
