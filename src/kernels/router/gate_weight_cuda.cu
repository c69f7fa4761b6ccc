// The gradient of the gate's weight on tensor cores: dw = dlogits^T x. A cluster of blocks makes a tile of
// kExperts experts x 128 columns, each block from an eighth of the tokens, and adds up its parts without a
// detour over memory. A gradient of logits is f32 and enters as the sum of two bf16 numbers, split where it
// becomes a fragment; so tiles of it arrive by asynchronous copies, as those of x do.
#include "kernels/cuda/pack.cuh"
#include "kernels/router/cluster_tile.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/mma.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kColumns = 128, kParts = 8;

// A warp holds 32 experts x 64 columns; warps left over share out the tokens of a step, 16 each.
template <int kExperts>
struct Tile {
  static constexpr int kWarps = kExperts > 64 ? 16 : 8, kThreads = kWarps * 32;
  static constexpr int kRuns = kWarps / (kExperts / 32 * (kColumns / 64)), kTokens = 16 * kRuns;
  static constexpr int kStages = kExperts > 64 ? 6 : 4;
  static constexpr int kStrideX = kColumns + 8;  // bf16: rows read by ldmatrix in different banks
  static constexpr int kStrideD = kExperts + 4;  // f32: four pairs of rows by eight experts likewise
  static constexpr int kBytesX = kTokens * kStrideX * 2, kStage = kBytesX + kTokens * kStrideD * 4;
  static constexpr int kSums = kExperts * tile_stride(kColumns);  // floats
  static constexpr int kShared = std::max(kStages * kStage, kRuns* kSums * 4);
  static constexpr int kBlocksPerSm = kExperts > 64 ? 1 : 2;
};

template <int kExperts, class D>
__global__ void __launch_bounds__(Tile<kExperts>::kThreads, Tile<kExperts>::kBlocksPerSm)
    backward_weight(const float* dlogits, const bf16* x, D* dw, int tokens, int width, int experts,
                    int tokens_per_part, bool add_to) {
  using S = Tile<kExperts>;
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kAcross = kColumns / 64;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int c0 = blockIdx.x * kColumns, e0 = blockIdx.z * kExperts;
  const int begin = blockIdx.y * tokens_per_part, end = min(tokens, begin + tokens_per_part);
  const int run = warp / (kExperts / 32 * kAcross), n0 = warp % kAcross * 64,
            m0 = warp / kAcross % (kExperts / 32) * 32;
  const bool whole_rows = experts % 4 == 0;  // rows of dlogits begin at 16 bytes

  const auto fill = [&](int step) {
    unsigned char* stage = shared + step % S::kStages * S::kStage;
    bf16* to_x = reinterpret_cast<bf16*>(stage);
    float* to_d = reinterpret_cast<float*>(stage + S::kBytesX);
    const int t0 = begin + step * S::kTokens;
#pragma unroll
    for (int i = threadIdx.x; i < S::kTokens * (kColumns / 8); i += S::kThreads) {
      const int row = i / (kColumns / 8), part = i % (kColumns / 8) * 8;
      const bool there = t0 + row < end && c0 + part < width;
      copy_async(to_x + row * S::kStrideX + part,
                 x + (there ? static_cast<int64_t>(t0 + row) * width + c0 + part : 0), there);
    }
    if (whole_rows) {
#pragma unroll
      for (int i = threadIdx.x; i < S::kTokens * (kExperts / 4); i += S::kThreads) {
        const int row = i / (kExperts / 4), e = i % (kExperts / 4) * 4;
        const bool there = t0 + row < end && e0 + e < experts;
        copy_async(to_d + row * S::kStrideD + e,
                   dlogits + (there ? static_cast<int64_t>(t0 + row) * experts + e0 + e : 0), there);
      }
    } else {
      for (int i = threadIdx.x; i < S::kTokens * kExperts; i += S::kThreads) {
        const int row = i / kExperts, e = i % kExperts;
        const bool there = t0 + row < end && e0 + e < experts;
        copy_word_async(to_d + row * S::kStrideD + e,
                        dlogits + (there ? static_cast<int64_t>(t0 + row) * experts + e0 + e : 0), there);
      }
    }
  };
  float sum[2][8][4] = {};
  const int steps = end > begin ? (end - begin + S::kTokens - 1) / S::kTokens : 0;
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
    const unsigned char* stage = shared + step % S::kStages * S::kStage;
    const bf16* tile_x = reinterpret_cast<const bf16*>(stage);
    const float* tile_d = reinterpret_cast<const float*>(stage + S::kBytesX) +
                          (run * 16 + lane % 4 * 2) * S::kStrideD + m0 + lane / 4;
    uint32_t high[2][4], low[2][4];
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* d = tile_d + i / 2 * 8 * S::kStrideD + m * 16 + i % 2 * 8;
        split(d[0], d[S::kStrideD], high[m][i], low[m][i]);
      }
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_b_transposed(b, tile_x, S::kStrideX, n0 + n * 8, run * 16, lane);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(sum[m][n], high[m], b[0], b[1]);
        multiply_add(sum[m][n + 1], high[m], b[2], b[3]);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        multiply_add(sum[m][n], low[m], b[0], b[1]);
        multiply_add(sum[m][n + 1], low[m], b[2], b[3]);
      }
    }
  }

  wait_copies<0>();
  __syncthreads();  // the stages are free
  constexpr int kStride = tile_stride(kColumns), kQuads = kColumns / 4;
  float* sums = reinterpret_cast<float*>(shared);
  put_sums(sums + run * S::kSums, kStride, sum, m0, n0, lane);
  __syncthreads();
  for (int i = threadIdx.x; i < kExperts * kQuads; i += S::kThreads) {
    float4* at = reinterpret_cast<float4*>(sums + i / kQuads * kStride + i % kQuads * 4);
    float4 of_runs = *at;
#pragma unroll
    for (int r = 1; r < S::kRuns; ++r) of_runs = add(of_runs, at[r * (S::kSums / 4)]);
    *at = of_runs;
  }
  cluster_sync();  // the sums of all blocks are there
  constexpr int kRows = kExperts / kParts;
  for (int i = threadIdx.x; i < kRows * kQuads; i += S::kThreads) {
    const int row = blockIdx.y * kRows + i / kQuads, column = i % kQuads * 4;
    const float4 all = sum_of_blocks(sums + row * kStride + column, kParts);
    if (e0 + row >= experts || c0 + column >= width) continue;
    D* to = dw + static_cast<int64_t>(e0 + row) * width + c0 + column;
    float value[4] = {all.x, all.y, all.z, all.w};
    if (add_to) {
      float old[4];
      Pack<D, 4>::load(to).get(old);
#pragma unroll
      for (int j = 0; j < 4; ++j) value[j] += old[j];
    }
    Pack<D, 4> out;
    out.set(value);
    out.store(to);
  }
  cluster_sync();  // no block leaves while others read its sums
}

}  // namespace

CudaLaunch prepare_gate_mma_backward_weight(const GateShape& shape, const Arg& dlogits, const Arg& x,
                                            const Arg& dw, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_float(dw.dtype, [&](auto zero) {
    using D = decltype(zero);
    with_expert_tile(shape.experts, [&](auto tile) {
      constexpr int kExperts = tile();
      using S = Tile<kExperts>;
      PLEAT_CUDA(cudaFuncSetAttribute(backward_weight<kExperts, D>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, S::kShared));
      const int64_t per_part = ceil_div(ceil_div(shape.tokens, kParts), S::kTokens) * S::kTokens;
      const dim3 blocks(static_cast<unsigned>(ceil_div(shape.width, kColumns)), kParts,
                        static_cast<unsigned>(ceil_div(shape.experts, kExperts)));
      out = [=, stream = lane.stream(), dlogits_ = dlogits.as<float>(), x_ = x.as<bf16>(), dw_ = dw.as<D>(),
             add_to = dw.into() == Into::Accumulate] {
        if (shape.width == 0) return;
        launch_in_clusters(backward_weight<kExperts, D>, blocks, S::kThreads, S::kShared, stream, dlogits_,
                           x_, dw_, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
                           static_cast<int>(shape.experts), static_cast<int>(per_part), add_to);
      };
    });
  });
  return out;
}

}  // namespace pleat::kernels
