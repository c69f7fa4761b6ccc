// The gradient of the gate's weight on tensor cores: sums over runs of tokens, of up to 128 experts x 256
// columns per block. Gradients of logits come as they are, f32, lie in shared memory so that a warp reads its
// part of the first operand without conflicts, and are cut into two bf16 numbers each in registers.
#include "device/cuda/check.h"
#include "kernels/cuda/shared_limit.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma_held.cuh"
#include "kernels/router/gate_products.cuh"
#include "kernels/router/gate_ring.cuh"

namespace pleat::kernels {
namespace {

using namespace cuda;
using namespace cuda::gate;

constexpr int kTokens = static_cast<int>(kGateTokens), kColumns = 256, kBytesX = kColumns / 64 * kBoxBytes;
constexpr int kBoxExperts = 32;  // floats of 128 bytes

// With 128 experts each warpgroup takes half of them, else half of the columns.
template <int kExperts_>
struct Tile {
  static constexpr int kExperts = kExperts_, kParts = kExperts / 64;  // parts of 128 columns of a warpgroup
  static constexpr int kStage = kBytesX + kExperts / kBoxExperts * kBoxBytes, kStages = kRingBytes / kStage;
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    backward_weight(const __grid_constant__ CUtensorMap map_d, const __grid_constant__ CUtensorMap map_x,
                    float* partial, int tokens, int width, int experts, int tokens_per_run) {
  extern __shared__ std::byte raw[];
  Ring ring(raw, S::kStages, 256);  // every multiplying thread empties a stage
  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int c0 = static_cast<int>(blockIdx.x) * kColumns, e0 = static_cast<int>(blockIdx.y) * S::kExperts;
  const int begin = static_cast<int>(blockIdx.z) * tokens_per_run, end = min(tokens, begin + tokens_per_run);
  if (warp >= 8) {
    give_registers<40>();
    if (warp > 8 || lane > 0) return;
    const int boxes = (min(S::kExperts, experts - e0) + kBoxExperts - 1) / kBoxExperts;
    for (int t = begin; t < end; t += kTokens, ring.advance()) {
      uint64_t* const full = ring.claim(kBytesX + boxes * kBoxBytes);
      std::byte* const to = ring.stages + ring.stage * S::kStage;
      for (int i = 0; i < boxes; ++i)
        load_2d(to + kBytesX + i * kBoxBytes, &map_d, full, e0 + i * kBoxExperts, t);
#pragma unroll
      for (int i = 0; i < kColumns / 64; ++i) load_2d(to + i * kBoxBytes, &map_x, full, c0 + i * 64, t);
    }
    return;
  }

  take_registers<232>();
  const int half = warp / 4, m0 = S::kParts > 1 ? half * 64 : 0, n0 = S::kParts > 1 ? 0 : half * 128;
  const int expert = warp % 4 * 16 + lane / 4;  // of the warpgroup's 64; the other is 8 further
  float sum[S::kParts][64] = {};
  for (int t = begin; t < end; t += kTokens, ring.advance()) {
    const std::byte* const stage = ring.stages + ring.stage * S::kStage;
    const std::byte* const gradients = stage + kBytesX + m0 / kBoxExperts * kBoxBytes;
    const auto gradient = [&](int e, int token) {
      return *reinterpret_cast<const float*>(gradients + e / kBoxExperts * kBoxBytes + token * 128 +
                                             (e % kBoxExperts / 4 ^ token % 8) * 16 + e % 4 * 4);
    };
    ring.wait_full();
    uint32_t high[kTokens / 16][4], low[kTokens / 16][4];
#pragma unroll
    for (int s = 0; s < kTokens / 16; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int e = expert + i % 2 * 8, token = s * 16 + i / 2 * 8 + lane % 4 * 2;
        split(gradient(e, token), gradient(e, token + 1), high[s][i], low[s][i]);
      }
    const uint64_t x = wgmma_tile(stage + n0 / 64 * kBoxBytes, true);
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) wgmma_pin(sum[part]);
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < kTokens / 16; ++s)
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        const uint64_t slice = wgmma_further(x, part * 2 * kBoxBytes + s * 2048);
        WgmmaHeld<128, 1>::run(sum[part], high[s], slice);
        WgmmaHeld<128, 1>::run(sum[part], low[s], slice);
      }
    wgmma_commit();
    wgmma_wait<0>();
    barrier_arrive(&ring.empty[ring.stage]);
  }
  float* const to = partial + static_cast<int64_t>(blockIdx.z) * experts * width;
#pragma unroll
  for (int part = 0; part < S::kParts; ++part) {
    wgmma_pin(sum[part]);
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int lower = 0; lower < 2; ++lower) {
        const int e = e0 + m0 + expert + lower * 8, c = c0 + n0 + part * 128 + j * 8 + lane % 4 * 2;
        if (e < experts && c < width)  // the width is a multiple of 8
          *reinterpret_cast<float2*>(to + static_cast<int64_t>(e) * width + c) =
              make_float2(sum[part][4 * j + 2 * lower], sum[part][4 * j + 2 * lower + 1]);
      }
  }
}

// Into how many runs the tokens are cut: the least time in steps of 64 tokens, when every multiprocessor has
// one block at a time, which takes about four steps to begin and end, and the sums of all runs are read again
// (a step reads kBytesX).
int64_t token_runs(const GateShape& shape, int64_t tiles, int64_t sms) {
  const int64_t steps = ceil_div(shape.tokens, kTokens);
  int64_t best = 1;
  double least = std::numeric_limits<double>::max();
  for (int64_t runs = 1; runs <= most_gate_runs(shape); ++runs) {
    const double time =
        static_cast<double>(ceil_div(tiles * runs, sms) * (ceil_div(steps, runs) + 4)) +
        static_cast<double>(4 * runs * shape.experts * shape.width) / static_cast<double>(sms * kBytesX);
    if (time < least) least = time, best = runs;
  }
  return best;
}

template <class S>
GatePartials prepare(const GateShape& shape, const Arg& dlogits, const Arg& x, device::cuda::Lane& lane) {
  const int64_t column_tiles = ceil_div(shape.width, kColumns),
                expert_tiles = ceil_div(shape.experts, S::kExperts);
  GatePartials out;
  out.runs = token_runs(shape, column_tiles * expert_tiles, device::cuda::facts().num_sms);
  const int64_t per_run = ceil_div(ceil_div(shape.tokens, out.runs), kTokens) * kTokens;
  MapShape of_gradients{shape.experts, shape.tokens};
  of_gradients.box_x = kBoxExperts, of_gradients.dtype = tensor::Dtype::F32;
  const CUtensorMap map_d = tensor_map(dlogits.data, of_gradients),
                    map_x = tensor_map(x.data, {shape.width, shape.tokens});
  allow_shared(reinterpret_cast<const void*>(&backward_weight<S>), kRingShared, "[router_gate] tiles");
  const dim3 blocks(static_cast<unsigned>(column_tiles), static_cast<unsigned>(expert_tiles),
                    static_cast<unsigned>(out.runs));
  out.launch = [=, stream = lane.stream()](float* partial) {
    backward_weight<S><<<blocks, kThreads, kRingShared, stream>>>(
        map_d, map_x, partial, static_cast<int>(shape.tokens), static_cast<int>(shape.width),
        static_cast<int>(shape.experts), static_cast<int>(per_run));
    PLEAT_CUDA_LAUNCHED();
  };
  return out;
}

}  // namespace

GatePartials prepare_gate_backward_weight(const GateShape& shape, const Arg& dlogits, const Arg& x,
                                          device::cuda::Lane& lane) {
  return shape.experts <= 64 ? prepare<Tile<64>>(shape, dlogits, x, lane)
                             : prepare<Tile<128>>(shape, dlogits, x, lane);
}

}  // namespace pleat::kernels
