// The gradient of the gate's input on tensor cores: dx = dlogits w. A block keeps the gradients of 128 tokens
// and walks over columns of w, 64 at a time. A gradient of logits is f32 and enters as the sum of two bf16
// numbers, so that each of its products costs two; nothing of it is rounded to bf16.
#include "device/cuda/check.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/mma.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kThreads = 256, kRows = 128, kColumns = 64;
constexpr int kPad = 8, kStrideW = kColumns + kPad;  // elements after each row of a tile
constexpr int kStages = 2;

// padded: the experts rounded up to a multiple of 16.
size_t shared_bytes(int64_t padded) {
  return static_cast<size_t>(2 * kRows * (padded + kPad) + kStages * padded * kStrideW) * 2;
}

// Rows [t0, t0 + kRows) of dlogits as two bf16 tiles, zeros where there is none. Several loads are under way
// at a time: a block has nothing else to do yet.
__device__ void split_rows(const float* dlogits, int t0, int tokens, int experts, int padded, bf16* high,
                           bf16* low) {
  constexpr int kAtOnce = 8;
  const int quads = padded / 4, stride = padded + kPad;
  const bool whole_rows = experts % 4 == 0;  // rows of dlogits begin at 16 bytes
  for (int first = threadIdx.x; first < kRows * quads; first += kAtOnce * kThreads) {
    float4 d[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kThreads, row = i / quads, e = i % quads * 4;
      d[j] = make_float4(0, 0, 0, 0);
      if (row >= kRows || t0 + row >= tokens) continue;
      const float* from = dlogits + static_cast<int64_t>(t0 + row) * experts + e;
      if (whole_rows) {
        if (e < experts) d[j] = *reinterpret_cast<const float4*>(from);
      } else {
        if (e < experts) d[j].x = from[0];
        if (e + 1 < experts) d[j].y = from[1];
        if (e + 2 < experts) d[j].z = from[2];
        if (e + 3 < experts) d[j].w = from[3];
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kThreads, row = i / quads, e = i % quads * 4;
      if (row >= kRows) continue;
      uint2 h, l;
      split(d[j].x, d[j].y, h.x, l.x);
      split(d[j].z, d[j].w, h.y, l.y);
      *reinterpret_cast<uint2*>(high + row * stride + e) = h;
      *reinterpret_cast<uint2*>(low + row * stride + e) = l;
    }
  }
}

// Where a pair of columns (of 32 in kColumns) stands in a row of the tile. Of four 8-column tiles of a
// product a lane holds two columns each; in this order they are eight neighbours of w, so that a lane reads
// and writes 16 bytes of dx without asking its quad.
__device__ int place_of_pair(int pair) { return pair / 16 * 32 + pair % 4 * 8 + pair % 16 / 4 * 2; }

__global__ void __launch_bounds__(kThreads, 2)
    backward_input(const float* dlogits, const bf16* w, bf16* dx, int tokens, int width, int experts,
                   int padded, int columns_per_block, bool add) {
  extern __shared__ __align__(16) bf16 tiles[];
  const int stride = padded + kPad;
  bf16 *high = tiles, *low = high + kRows * stride, *tile_w = low + kRows * stride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int t0 = blockIdx.x * kRows;
  const int begin = blockIdx.y * columns_per_block, end = min(width, begin + columns_per_block);
  const int m0 = warp / 2 * 32, n0 = warp % 2 * 32, place = place_of_pair(lane);

  // A warp copies a row of w, a lane two columns.
  const auto fill = [&](int step) {
    bf16* stage = tile_w + step % kStages * padded * kStrideW;
    const int column = begin + step * kColumns + lane * 2;
    for (int e = warp; e < padded; e += kThreads / 32) {
      const bool there = e < experts && column < end;
      copy_word_async(stage + e * kStrideW + place,
                      w + (there ? static_cast<int64_t>(e) * width + column : 0), there);
    }
  };
  const auto row_of = [&](int m, int half) { return t0 + m0 + m * 16 + half * 8 + lane / 4; };
  const auto column_of = [&](int step) { return begin + step * kColumns + n0 + lane % 4 * 8; };
  Pack<bf16, 8> before[2][2];  // what is added to, asked for a step ahead
  const auto load_before = [&](int step, int m, int half) {
    if (row_of(m, half) < tokens && column_of(step) < end)
      before[m][half] =
          Pack<bf16, 8>::load(dx + static_cast<int64_t>(row_of(m, half)) * width + column_of(step));
  };
  const int steps = (end - begin + kColumns - 1) / kColumns;
  if (steps <= 0) return;
  fill(0);
  commit_copies();
  if (add) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) load_before(0, m, half);
  }
  split_rows(dlogits, t0, tokens, experts, padded, high, low);
  for (int step = 0; step < steps; ++step) {
    wait_copies<0>();
    __syncthreads();  // the stage is full, and all are done with the one that is filled next
    if (step + 1 < steps) fill(step + 1);
    commit_copies();
    const bf16* stage = tile_w + step % kStages * padded * kStrideW;
    float sum[2][4][4] = {};
#pragma unroll 2
    for (int k = 0; k < padded; k += 16) {
      uint32_t a[2][4], rest[2][4], b[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_a(a[m], high, stride, m0 + m * 16, k, lane);
        load_a(rest[m], low, stride, m0 + m * 16, k, lane);
        load_b_transposed(b[m], stage, kStrideW, n0 + m * 16, k, lane);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          multiply_add(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
#pragma unroll
      for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          multiply_add(sum[m][n], rest[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
    }
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row_of(m, half) >= tokens || column_of(step) >= end) continue;
        float row[8];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          row[2 * n] = sum[m][n][half * 2];
          row[2 * n + 1] = sum[m][n][half * 2 + 1];
        }
        if (add) {
          float old[8];
          before[m][half].get(old);
#pragma unroll
          for (int i = 0; i < 8; ++i) row[i] += old[i];
          if (step + 1 < steps) load_before(step + 1, m, half);
        }
        Pack<bf16, 8> out;
        out.set(row);
        out.store(dx + static_cast<int64_t>(row_of(m, half)) * width + column_of(step));
      }
  }
}

// Into how many runs of column tiles the grid cuts w: the least time in steps of a block, when 264 blocks
// (two per multiprocessor) are there at a time and a block takes about two steps to begin.
int64_t column_runs(int64_t row_blocks, int64_t tiles) {
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t runs = 1; runs <= tiles; ++runs) {
    const int64_t time = ceil_div(row_blocks * runs, 264) * (ceil_div(tiles, runs) + 2);
    if (time < least) best = runs, least = time;
  }
  return best;
}

}  // namespace

CudaLaunch prepare_gate_mma_backward_input(const GateShape& shape, const Arg& dlogits, const Arg& w,
                                           const Arg& dx, device::cuda::Lane& lane) {
  const int64_t padded = ceil_div(shape.experts, 16) * 16, row_blocks = ceil_div(shape.tokens, kRows);
  const int64_t tiles = ceil_div(shape.width, kColumns);
  const int64_t columns_per_block = ceil_div(tiles, column_runs(row_blocks, tiles)) * kColumns;
  const size_t shared = shared_bytes(padded);
  PLEAT_CUDA(cudaFuncSetAttribute(backward_input, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes(kGateMmaExperts))));
  const float* dlogits_ = dlogits.as<float>();
  const bf16* w_ = w.as<bf16>();
  bf16* dx_ = dx.as<bf16>();
  const bool add = dx.into() == Into::Accumulate;
  return [=, stream = lane.stream()] {
    if (row_blocks == 0 || shape.width == 0) return;
    const dim3 blocks(static_cast<unsigned>(row_blocks),
                      static_cast<unsigned>(ceil_div(shape.width, columns_per_block)));
    backward_input<<<blocks, kThreads, shared, stream>>>(
        dlogits_, w_, dx_, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
        static_cast<int>(shape.experts), static_cast<int>(padded), static_cast<int>(columns_per_block), add);
    PLEAT_CUDA_LAUNCHED();
  };
}

}  // namespace pleat::kernels
