// The gate's products on tensor cores: bf16 operands, f32 sums. A gradient of logits is f32 and enters as the
// sum of two bf16 numbers, so that each of its products costs two; nothing of it is rounded to bf16.
#include "device/cuda/check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/mma.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kPad = 8;  // elements after each row of a tile

// ---- forward: 64 tokens x kExperts experts per block, four warps of 32 x kExperts / 2.
constexpr int kForwardThreads = 128, kForwardRows = 64, kDepth = 64, kStages = 4,
              kDepthStride = kDepth + kPad;

template <int kExperts>
constexpr int kForwardShared = kStages*(kForwardRows + kExperts) * kDepthStride * 2;

template <int kExperts>
__global__ void __launch_bounds__(kForwardThreads)
    forward(const bf16* x, const bf16* w, const bf16* bias, float* logits, int tokens, int width,
            int experts) {
  extern __shared__ __align__(16) bf16 tiles[];
  constexpr int kRows = kForwardRows + kExperts, kColumns = kExperts / 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int t0 = blockIdx.x * kForwardRows, e0 = blockIdx.y * kExperts;
  const int m0 = warp / 2 * 32, n0 = warp % 2 * (kExperts / 2);

  const auto fill = [&](int step) {
    bf16* stage = tiles + step % kStages * kRows * kDepthStride;
    for (int i = threadIdx.x; i < kRows * (kDepth / 8); i += kForwardThreads) {
      const int row = i / (kDepth / 8), part = i % (kDepth / 8) * 8, column = step * kDepth + part;
      const bool of_x = row < kForwardRows;
      const int source = of_x ? t0 + row : e0 + row - kForwardRows;
      const bool there = column < width && source < (of_x ? tokens : experts);
      const bf16* from = (of_x ? x : w) + (there ? static_cast<int64_t>(source) * width + column : 0);
      copy_async(stage + row * kDepthStride + part, from, there);
    }
  };
  float sum[2][kColumns][4] = {};
  const int steps = (width + kDepth - 1) / kDepth;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) fill(s);
    commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // the stage is full, and all are done with the one that is filled next
    if (step + kStages - 1 < steps) fill(step + kStages - 1);
    commit_copies();
    const bf16* tile_x = tiles + step % kStages * kRows * kDepthStride;
    const bf16* tile_w = tile_x + kForwardRows * kDepthStride;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[2][4];
      load_a(a[0], tile_x, kDepthStride, m0, k, lane);
      load_a(a[1], tile_x, kDepthStride, m0 + 16, k, lane);
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
        uint32_t b[4];
        load_b(b, tile_w, kDepthStride, n0 + n * 8, k, lane);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(sum[m][n], a[m], b[0], b[1]);
          multiply_add(sum[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = t0 + m0 + m * 16 + lane / 4 + i / 2 * 8, e = e0 + n0 + n * 8 + lane % 4 * 2 + i % 2;
        if (t < tokens && e < experts)
          logits[static_cast<int64_t>(t) * experts + e] = sum[m][n][i] + (bias ? to_float(bias[e]) : 0.0f);
      }
}

// ---- backward input: a block keeps the gradients of 128 tokens and walks over columns of w, 64 at a time.
constexpr int kInputThreads = 256, kInputRows = 128, kInputColumns = 64, kInputStride = kInputColumns + kPad;

// kExperts: the experts rounded up to a multiple of 16.
size_t input_shared(int64_t padded_experts) {
  return static_cast<size_t>(2 * (kInputRows * (padded_experts + kPad) + padded_experts * kInputStride) * 2);
}

// Lane q of a quad holds two columns of each of four 8-column tiles; afterwards it holds the 8 of tile q.
__device__ void gather_columns(const float (&c)[4][2], int q, float (&row)[8]) {
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int tile = q ^ r;  // which of mine lane q ^ r wants, and whose part of mine I get
    float low = c[0][0], high = c[0][1];
#pragma unroll
    for (int i = 1; i < 4; ++i) {
      low = tile == i ? c[i][0] : low;
      high = tile == i ? c[i][1] : high;
    }
    low = __shfl_xor_sync(0xffffffffu, low, r);
    high = __shfl_xor_sync(0xffffffffu, high, r);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      row[2 * i] = tile == i ? low : row[2 * i];
      row[2 * i + 1] = tile == i ? high : row[2 * i + 1];
    }
  }
}

__global__ void __launch_bounds__(kInputThreads)
    backward_input(const float* dlogits, const bf16* w, bf16* dx, int tokens, int width, int experts,
                   int padded, int columns_per_block, bool add) {
  extern __shared__ __align__(16) bf16 tiles[];
  const int stride = padded + kPad;
  bf16 *high = tiles, *low = high + kInputRows * stride, *tile_w = low + kInputRows * stride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int t0 = blockIdx.x * kInputRows;
  const int begin = blockIdx.y * columns_per_block, end = min(width, begin + columns_per_block);
  const int m0 = warp / 2 * 32, n0 = warp % 2 * 32;

  const auto fill = [&](int step) {
    bf16* stage = tile_w + step % 2 * padded * kInputStride;
    for (int i = threadIdx.x; i < padded * (kInputColumns / 8); i += kInputThreads) {
      const int e = i / (kInputColumns / 8), part = i % (kInputColumns / 8) * 8;
      const int column = begin + step * kInputColumns + part;
      const bool there = e < experts && column < end;
      copy_async(stage + e * kInputStride + part, w + (there ? static_cast<int64_t>(e) * width + column : 0),
                 there);
    }
  };
  const int steps = (end - begin + kInputColumns - 1) / kInputColumns;
  if (steps <= 0) return;
  fill(0);
  commit_copies();
  for (int i = threadIdx.x; i < kInputRows * padded; i += kInputThreads) {
    const int row = i / padded, e = i % padded;
    const float d =
        t0 + row < tokens && e < experts ? dlogits[static_cast<int64_t>(t0 + row) * experts + e] : 0.0f;
    split(d, high[row * stride + e], low[row * stride + e]);
  }
  for (int step = 0; step < steps; ++step) {
    const int column = begin + step * kInputColumns + n0 + lane % 4 * 8;
    const auto row_of = [&](int m, int half) { return t0 + m0 + m * 16 + half * 8 + lane / 4; };
    Pack<bf16, 8> before[2][2];  // what is added to arrives while the products are made
    if (add) {
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (row_of(m, half) < tokens && column < end)
            before[m][half] =
                Pack<bf16, 8>::load(dx + static_cast<int64_t>(row_of(m, half)) * width + column);
    }
    if (step + 1 < steps) fill(step + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const bf16* stage = tile_w + step % 2 * padded * kInputStride;
    float sum[2][4][4] = {};
    for (int k = 0; k < padded; k += 16) {
      uint32_t a[2][4], rest[2][4], b[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_a(a[m], high, stride, m0 + m * 16, k, lane);
        load_a(rest[m], low, stride, m0 + m * 16, k, lane);
        load_b_transposed(b[m], stage, kInputStride, n0 + m * 16, k, lane);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          multiply_add(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
          multiply_add(sum[m][n], rest[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float mine[4][2], row[8] = {};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          mine[n][0] = sum[m][n][half * 2];
          mine[n][1] = sum[m][n][half * 2 + 1];
        }
        gather_columns(mine, lane % 4, row);
        if (row_of(m, half) >= tokens || column >= end) continue;
        if (add) {
          float old[8];
          before[m][half].get(old);
#pragma unroll
          for (int i = 0; i < 8; ++i) row[i] += old[i];
        }
        Pack<bf16, 8> out;
        out.set(row);
        out.store(dx + static_cast<int64_t>(row_of(m, half)) * width + column);
      }
    __syncthreads();  // before the stage is filled again
  }
}

// ---- backward weight: kExperts experts x 128 columns per block over a run of tokens, 32 at a time.
constexpr int kWeightThreads = 256, kWeightColumns = 128, kTokens = 32, kWeightStages = 3;
constexpr int kXStride = kWeightColumns + kPad;

template <int kExperts>
constexpr int kWeightShared = (kWeightStages * kTokens * kXStride + 2 * kTokens * (kExperts + kPad)) * 2;

template <int kExperts>
__global__ void __launch_bounds__(kWeightThreads)
    backward_weight(const float* dlogits, const bf16* x, float* partial, int tokens, int width, int experts,
                    int tokens_per_split) {
  extern __shared__ __align__(16) bf16 tiles[];
  constexpr int kWarpRows = kExperts / 32, kWarpColumns = 8 / kWarpRows;  // warps across experts, columns
  constexpr int kColumns = kWeightColumns / kWarpColumns / 8;
  constexpr int kStride = kExperts + kPad, kPerThread = kTokens * kExperts / kWeightThreads;
  bf16 *high = tiles + kWeightStages * kTokens * kXStride, *low = high + kTokens * kStride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int c0 = blockIdx.x * kWeightColumns, e0 = blockIdx.y * kExperts;
  const int begin = blockIdx.z * tokens_per_split, end = min(tokens, begin + tokens_per_split);
  const int m0 = warp / kWarpColumns * 32, n0 = warp % kWarpColumns * (kColumns * 8);

  const auto fill = [&](int step) {
    bf16* stage = tiles + step % kWeightStages * kTokens * kXStride;
    for (int i = threadIdx.x; i < kTokens * (kWeightColumns / 8); i += kWeightThreads) {
      const int row = i / (kWeightColumns / 8), part = i % (kWeightColumns / 8) * 8;
      const int t = begin + step * kTokens + row;
      const bool there = t < end && c0 + part < width;
      copy_async(stage + row * kXStride + part, x + (there ? static_cast<int64_t>(t) * width + c0 + part : 0),
                 there);
    }
  };
  float d[kPerThread];
  const auto load_gradients = [&](int step) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = i * kWeightThreads + threadIdx.x, t = begin + step * kTokens + at / kExperts,
                e = e0 + at % kExperts;
      d[i] = t < end && e < experts ? dlogits[static_cast<int64_t>(t) * experts + e] : 0.0f;
    }
  };
  float sum[2][kColumns][4] = {};
  const int steps = end > begin ? (end - begin + kTokens - 1) / kTokens : 0;
#pragma unroll
  for (int s = 0; s < kWeightStages - 1; ++s) {
    if (s < steps) fill(s);
    commit_copies();
  }
  if (steps > 0) load_gradients(0);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kWeightStages - 2>();
    __syncthreads();  // x is there, and all are done with the last step's tiles
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int at = i * kWeightThreads + threadIdx.x, to = at / kExperts * kStride + at % kExperts;
      split(d[i], high[to], low[to]);
    }
    if (step + kWeightStages - 1 < steps) fill(step + kWeightStages - 1);
    commit_copies();
    __syncthreads();
    if (step + 1 < steps) load_gradients(step + 1);
    const bf16* stage = tiles + step % kWeightStages * kTokens * kXStride;
#pragma unroll
    for (int k = 0; k < kTokens; k += 16) {
      uint32_t a[2][4], rest[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_a_transposed(a[m], high, kStride, m0 + m * 16, k, lane);
        load_a_transposed(rest[m], low, kStride, m0 + m * 16, k, lane);
      }
#pragma unroll
      for (int n = 0; n < kColumns; n += 2) {
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
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int e = e0 + m0 + m * 16 + lane / 4 + half * 8, c = c0 + n0 + n * 8 + lane % 4 * 2;
        if (e < experts && c < width)  // the width is a multiple of 8
          *reinterpret_cast<float2*>(to + static_cast<int64_t>(e) * width + c) =
              make_float2(sum[m][n][half * 2], sum[m][n][half * 2 + 1]);
      }
}

template <class F>
void with_expert_tile(int64_t experts, F&& f) {
  if (experts <= 32)
    f(std::integral_constant<int, 32>{});
  else if (experts <= 64)
    f(std::integral_constant<int, 64>{});
  else
    f(std::integral_constant<int, 128>{});
}

}  // namespace

bool gate_on_tensor_cores(tensor::Dtype dtype, const GateShape& shape) {
  return dtype == tensor::Dtype::BF16 && shape.width % 8 == 0 && shape.experts <= kGateMmaExperts;
}

CudaLaunch prepare_gate_mma_forward(const GateShape& shape, const Arg& x, const Arg& w, const Arg& bias,
                                    const Arg& logits, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_expert_tile(shape.experts, [&](auto tile) {
    constexpr int kExperts = tile();
    PLEAT_CUDA(cudaFuncSetAttribute(forward<kExperts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kForwardShared<kExperts>));
    out = [=, stream = lane.stream(), x_ = x.as<bf16>(), w_ = w.as<bf16>(), bias_ = bias.as<bf16>(),
           logits_ = logits.as<float>()] {
      if (shape.tokens == 0) return;
      const dim3 blocks(static_cast<unsigned>(ceil_div(shape.tokens, kForwardRows)),
                        static_cast<unsigned>(ceil_div(shape.experts, kExperts)));
      forward<kExperts><<<blocks, kForwardThreads, kForwardShared<kExperts>, stream>>>(
          x_, w_, bias_, logits_, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
          static_cast<int>(shape.experts));
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

CudaLaunch prepare_gate_mma_backward_input(const GateShape& shape, const Arg& dlogits, const Arg& w,
                                           const Arg& dx, device::cuda::Lane& lane) {
  const int64_t padded = ceil_div(shape.experts, 16) * 16, row_blocks = ceil_div(shape.tokens, kInputRows);
  // About two blocks per multiprocessor, each of some column tiles.
  const int64_t tiles = ceil_div(shape.width, kInputColumns);
  const int64_t splits =
      std::max<int64_t>(1, std::min(tiles, ceil_div(264, std::max<int64_t>(1, row_blocks))));
  const int64_t columns_per_block = ceil_div(tiles, splits) * kInputColumns;
  const size_t shared = input_shared(padded);
  PLEAT_CUDA(cudaFuncSetAttribute(backward_input, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(input_shared(kGateMmaExperts))));
  const float* dlogits_ = dlogits.as<float>();
  const bf16* w_ = w.as<bf16>();
  bf16* dx_ = dx.as<bf16>();
  const bool add = dx.into() == Into::Accumulate;
  return [=, stream = lane.stream()] {
    if (row_blocks == 0) return;
    const dim3 blocks(static_cast<unsigned>(row_blocks),
                      static_cast<unsigned>(ceil_div(shape.width, columns_per_block)));
    backward_input<<<blocks, kInputThreads, shared, stream>>>(
        dlogits_, w_, dx_, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
        static_cast<int>(shape.experts), static_cast<int>(padded), static_cast<int>(columns_per_block), add);
    PLEAT_CUDA_LAUNCHED();
  };
}

PartialLaunch prepare_gate_mma_backward_weight(const GateShape& shape, const Arg& dlogits, const Arg& x,
                                               int64_t splits, device::cuda::Lane& lane) {
  PartialLaunch out;
  with_expert_tile(shape.experts, [&](auto tile) {
    constexpr int kExperts = tile();
    PLEAT_CUDA(cudaFuncSetAttribute(backward_weight<kExperts>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    kWeightShared<kExperts>));
    const float* dlogits_ = dlogits.as<float>();
    const bf16* x_ = x.as<bf16>();
    const int64_t per_split = ceil_div(ceil_div(shape.tokens, splits), kTokens) * kTokens;
    out = [=, stream = lane.stream()](float* partial) {
      const dim3 blocks(static_cast<unsigned>(ceil_div(shape.width, kWeightColumns)),
                        static_cast<unsigned>(ceil_div(shape.experts, kExperts)),
                        static_cast<unsigned>(splits));
      backward_weight<kExperts><<<blocks, kWeightThreads, kWeightShared<kExperts>, stream>>>(
          dlogits_, x_, partial, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
          static_cast<int>(shape.experts), static_cast<int>(per_split));
      PLEAT_CUDA_LAUNCHED();
    };
  });
  return out;
}

}  // namespace pleat::kernels
