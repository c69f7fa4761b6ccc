// The gradient of the gate's input on tensor cores: dx (+)= dlogits w. A block keeps the gradients of 128
// tokens in registers, as two bf16 numbers each, and walks over columns of w; what is added to comes with
// them, is added in place in shared memory, and leaves by bulk stores. So dx moves once each way, and a sum
// is rounded once. Of more experts than registers hold, the gradients are read again for every tile of
// columns.
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

constexpr int kRows = 128;

// kExperts: the depth, rounded up; or of a part of it.
template <int kExperts_, bool kInParts_ = false>
struct Tile {
  static constexpr bool kInParts = kInParts_;
  static constexpr int kExperts = kExperts_, kSlices = kExperts / 16;  // of depth
  static constexpr int kColumns = kExperts > 128 ? 64 : 128, kBoxes = kColumns / 64;
  static constexpr int kDepthBoxes = (kExperts + 63) / 64;
  static constexpr int kBytesW = kDepthBoxes * kBoxes * kBoxBytes, kBytesX = 2 * kBoxes * kBoxBytes;
  static constexpr int kStage = kBytesW + kBytesX, kStages = kRingBytes / kStage;
};

struct InputShape {
  const float* dlogits;
  int tokens, experts, width, tiles_per_block;
  int parts;  // of the experts, each as many as are held
  bool add;
};

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    backward_input(const __grid_constant__ CUtensorMap map_w, const __grid_constant__ CUtensorMap map_dx,
                   const InputShape a) {
  extern __shared__ std::byte raw[];
  Ring ring(raw, S::kStages, 2);  // a thread of each warpgroup empties a stage
  const int warp = warp_of_block(), lane = static_cast<int>(threadIdx.x) % 32;
  const int t0 = static_cast<int>(blockIdx.x) * kRows;
  const int begin = static_cast<int>(blockIdx.y) * a.tiles_per_block * S::kColumns,
            end = min(a.width, begin + a.tiles_per_block * S::kColumns);
  const int parts = S::kInParts ? a.parts : 1;
  if (warp >= 8) {
    give_registers<40>();
    if (warp > 8 || lane > 0) return;
    for (int column = begin; column < end; column += S::kColumns)
      for (int part = 0; part < parts; ++part, ring.advance()) {
        const bool with_dx = a.add && part == parts - 1;
        uint64_t* const full = ring.claim(S::kBytesW + (with_dx ? S::kBytesX : 0));
        std::byte* const to = ring.stages + ring.stage * S::kStage;
#pragma unroll
        for (int i = 0; i < S::kDepthBoxes * S::kBoxes; ++i)
          load_2d(to + i * kBoxBytes, &map_w, full, column + i % S::kBoxes * 64,
                  part * S::kExperts + i / S::kBoxes * 64);
        if (!with_dx) continue;
#pragma unroll
        for (int i = 0; i < 2 * S::kBoxes; ++i)
          load_2d(to + S::kBytesW + i * kBoxBytes, &map_dx, full, column + i % S::kBoxes * 64,
                  t0 + i / S::kBoxes * 64);
      }
    return;
  }

  take_registers<232>();
  const int half = warp / 4, row = warp % 4 * 16 + lane / 4;  // of the half's 64; the other is 8 further
  uint32_t high[S::kSlices][4], low[S::kSlices][4];
  const auto hold = [&](int part) {
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = t0 + half * 64 + row + i % 2 * 8,
                  e = part * S::kExperts + s * 16 + i / 2 * 8 + lane % 4 * 2;
        float2 d = make_float2(0, 0);
        if (t < a.tokens && e < a.experts)  // experts are a multiple of 4
          d = *reinterpret_cast<const float2*>(a.dlogits + static_cast<int64_t>(t) * a.experts + e);
        split(d.x, d.y, high[s][i], low[s][i]);
      }
  };
  if constexpr (!S::kInParts) hold(0);
  const bool first = threadIdx.x % 128 == 0;  // speaks for its warpgroup
  int leaving = -1;                           // the stage that holds sums on their way
  for (int column = begin; column < end; column += S::kColumns) {
    float sum[S::kColumns / 2] = {};
    for (int part = 0; part < parts; ++part, ring.advance()) {
      std::byte* const stage = ring.stages + ring.stage * S::kStage;
      const uint64_t w = wgmma_tile(stage, true);
      if constexpr (S::kInParts) hold(part);
      ring.wait_full();
      wgmma_pin(sum);
      wgmma_begin();
#pragma unroll
      for (int s = 0; s < S::kSlices; ++s) {
        const uint64_t slice = wgmma_further(w, s / 4 * S::kBoxes * kBoxBytes + s % 4 * 2048);
        WgmmaHeld<S::kColumns, 1>::run(sum, high[s], slice);
        WgmmaHeld<S::kColumns, 1>::run(sum, low[s], slice);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(sum);
      if (part < parts - 1) {
        named_barrier(1 + half, 128);  // all are done with the stage
        if (first) {
          if (leaving >= 0) {
            store_wait_read<0>();
            barrier_arrive(&ring.empty[leaving]);
            leaving = -1;
          }
          barrier_arrive(&ring.empty[ring.stage]);
        }
        continue;
      }
      std::byte* const mine = stage + S::kBytesW + half * S::kBoxes * kBoxBytes;
#pragma unroll
      for (int j = 0; j < S::kColumns / 8; ++j)
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
          const int r = row + lower * 8;
          auto* const at = reinterpret_cast<__nv_bfloat162*>(mine + j / 8 * kBoxBytes + r * 128 +
                                                             (j % 8 ^ r % 8) * 16 + lane % 4 * 4);
          float x = sum[4 * j + 2 * lower], y = sum[4 * j + 2 * lower + 1];
          if (a.add) {
            const float2 old = __bfloat1622float2(*at);
            x += old.x, y += old.y;
          }
          *at = __floats2bfloat162_rn(x, y);
        }
      fence_async_proxy();
      named_barrier(1 + half, 128);
      if (first) {
#pragma unroll
        for (int i = 0; i < S::kBoxes; ++i)
          store_2d(&map_dx, mine + i * kBoxBytes, column + i * 64, t0 + half * 64);
        store_commit();
        store_wait_read<1>();  // the former tile has left its stage
        if (leaving >= 0) barrier_arrive(&ring.empty[leaving]);
        leaving = ring.stage;
      }
    }
  }
  if (first) store_wait_read<0>();
}

// Into how many runs of column tiles the grid cuts w: the least time in tiles of a block, when every
// multiprocessor has one block at a time, which takes about two tiles to begin and end.
int64_t column_runs(int64_t row_blocks, int64_t tiles, int64_t sms) {
  int64_t best = 1, least = std::numeric_limits<int64_t>::max();
  for (int64_t runs = 1; runs <= tiles; ++runs) {
    const int64_t time = ceil_div(row_blocks * runs, sms) * (ceil_div(tiles, runs) + 2);
    if (time < least) least = time, best = runs;
  }
  return best;
}

template <class S>
CudaLaunch prepare(const GateShape& shape, const Arg& dlogits, const Arg& w, const Arg& dx,
                   device::cuda::Lane& lane) {
  const CUtensorMap map_w = tensor_map(w.data, {shape.width, shape.experts}),
                    map_dx = tensor_map(dx.data, {shape.width, shape.tokens});
  const int64_t row_blocks = ceil_div(shape.tokens, kRows), tiles = ceil_div(shape.width, S::kColumns);
  const int64_t per_block = ceil_div(tiles, column_runs(row_blocks, tiles, device::cuda::facts().num_sms));
  const InputShape a{dlogits.as<float>(),
                     static_cast<int>(shape.tokens),
                     static_cast<int>(shape.experts),
                     static_cast<int>(shape.width),
                     static_cast<int>(per_block),
                     static_cast<int>(ceil_div(shape.experts, S::kExperts)),
                     dx.into() == Into::Accumulate};
  allow_shared(reinterpret_cast<const void*>(&backward_input<S>), kRingShared, "[router_gate] tiles");
  const dim3 blocks(static_cast<unsigned>(row_blocks), static_cast<unsigned>(ceil_div(tiles, per_block)));
  return [=, stream = lane.stream()] {
    backward_input<S><<<blocks, kThreads, kRingShared, stream>>>(map_w, map_dx, a);
    PLEAT_CUDA_LAUNCHED();
  };
}

}  // namespace

CudaLaunch prepare_gate_backward_input(const GateShape& shape, const Arg& dlogits, const Arg& w,
                                       const Arg& dx, device::cuda::Lane& lane) {
  return shape.experts <= 16    ? prepare<Tile<16>>(shape, dlogits, w, dx, lane)
         : shape.experts <= 32  ? prepare<Tile<32>>(shape, dlogits, w, dx, lane)
         : shape.experts <= 64  ? prepare<Tile<64>>(shape, dlogits, w, dx, lane)
         : shape.experts <= 128 ? prepare<Tile<128>>(shape, dlogits, w, dx, lane)
         : shape.experts <= 256 ? prepare<Tile<256>>(shape, dlogits, w, dx, lane)
                                : prepare<Tile<256, true>>(shape, dlogits, w, dx, lane);
}

}  // namespace pleat::kernels
