// Own forward: one block of threads takes one head and kBlock queries, and walks the keys they see with an
// online softmax (in base 2). The longest walks start first.
#include "device/cuda/check.h"
#include "kernels/attention/attention_own.h"
#include "kernels/attention/attention_tiles.cuh"
#include "kernels/attention/attention_widths.h"

namespace pleat::kernels::attention {
namespace {

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <class Engine, int D, int DV>
struct ForwardTiles {
  using T = typename Engine::Element;
  static constexpr int B = Engine::kBlock, kKeys = B < 64 ? B : 64;
  static constexpr int kLdQ = D + Engine::kPad, kLdV = DV + Engine::kPad;
  T q[B * kLdQ], k[kKeys * kLdQ], v[kKeys * kLdV], p[Engine::kThroughShared ? B * (kKeys + Engine::kPad) : 8];
  int row[B], low[B];
};

template <int kLanes>
__device__ float row_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
template <int kLanes>
__device__ float row_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

template <class Engine, int D, int DV>
__global__ void __launch_bounds__(Engine::kThreads) forward(const OwnArguments a, bool wide) {
  using Tiles = ForwardTiles<Engine, D, DV>;
  using T = typename Tiles::T;
  if (a.listed && *a.listed) return;
  constexpr int B = Tiles::B, kKeys = Tiles::kKeys;
  extern __shared__ __align__(16) unsigned char memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * B, head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  const T* k = static_cast<const T*>(a.k) + static_cast<int64_t>(kv_head) * a.d;
  const T* v = static_cast<const T*>(a.v) + static_cast<int64_t>(kv_head) * a.dv;

  load_rows<Engine, B, D>(tiles.q,
                          static_cast<const T*>(a.q) + first * a.q_row + static_cast<int64_t>(head) * a.d,
                          a.q_row, a.num_queries - first, a.d, wide);
  BlockRows block{tiles.row, tiles.low, 0, 0};
  load_block_rows<B>(block, first, a.num_queries, a.query_row, a.doc_start, a.window);
  int row[Engine::kRows], low[Engine::kRows];
  float top[Engine::kRows], total[Engine::kRows];
#pragma unroll
  for (int i = 0; i < Engine::kRows; ++i) {
    row[i] = block.row[Engine::row(i)], low[i] = block.low[Engine::row(i)];
    top[i] = -INFINITY, total[i] = 0;
  }
  typename Engine::template Tile<DV> out;
  clear(out);
  const float scale = a.scale * kLog2E;

  // Two groups of copies at most are under way: values arrive while scores are made, the next keys while
  // values are used.
  const int first_key = block.least / kKeys * kKeys;
  const auto load_keys = [&](int key) {
    if (key <= block.most)
      load_rows<Engine, kKeys, D>(tiles.k, k + key * a.kv_row, a.kv_row, a.num_keys - key, a.d, wide);
    commit();
  };
  load_keys(first_key);
  for (int key = first_key; key <= block.most; key += kKeys) {
    load_rows<Engine, kKeys, DV>(tiles.v, v + key * a.kv_row, a.kv_row, a.num_keys - key, a.dv, wide);
    commit();
    wait<1>();
    __syncthreads();  // the keys are here
    typename Engine::template Tile<kKeys> s;
    clear(s);
    Engine::template nt<kKeys, D>(s, tiles.q, Tiles::kLdQ, tiles.k, Tiles::kLdQ);
    __syncthreads();  // nobody reads them any more
    load_keys(key + kKeys);
#pragma unroll
    for (int i = 0; i < Engine::kRows; ++i) {
      float most = top[i];
#pragma unroll
      for (int j = 0; j < Engine::template kColumns<kKeys>; ++j) {
        const int c = key + Engine::template column<kKeys>(j);
        s[i][j] = c >= low[i] && c <= row[i] ? s[i][j] * scale : -INFINITY;
        most = fmaxf(most, s[i][j]);
      }
      most = row_max<Engine::kRowLanes>(most);
      const float base = most == -INFINITY ? 0.0f : most;  // nothing seen so far: every term is zero
      const float fade = exp2f(top[i] - base);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < Engine::template kColumns<kKeys>; ++j) {
        s[i][j] = exp2f(s[i][j] - base);
        sum += s[i][j];
      }
      total[i] = total[i] * fade + row_sum<Engine::kRowLanes>(sum);
      top[i] = most;
#pragma unroll
      for (int j = 0; j < Engine::template kColumns<DV>; ++j) out[i][j] *= fade;
    }
    wait<1>();
    __syncthreads();  // the values are here
    Engine::template nn_held<DV, kKeys>(out, s, tiles.p, tiles.v, Tiles::kLdV);
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < Engine::kRows; ++i) {
    if (row[i] < 0) continue;
    float fade = 1;
    if (a.sinks) {
      const float sink = cuda::to_float(static_cast<const T*>(a.sinks)[head]) * kLog2E;
      const float most = fmaxf(top[i], sink);
      fade = exp2f(top[i] - most);
      total[i] = total[i] * fade + exp2f(sink - most);
      top[i] = most;
    }
    const int64_t query = first + Engine::row(i);
    T* to = static_cast<T*>(a.out_to) + query * a.out_row + static_cast<int64_t>(head) * a.dv;
    const float factor = fade / total[i];
#pragma unroll
    for (int j = 0; j < Engine::template kColumns<DV>; ++j) {
      const int c = Engine::template column<DV>(j);
      if (c < a.dv) to[c] = cuda::from_float<T>(out[i][j] * factor);
    }
    if (Engine::template column<DV>(0) == 0)
      a.lse[query * a.heads + head] = (top[i] + log2f(total[i])) * kLn2;
  }
}

template <class Engine, int D, int DV>
CudaLaunch launch(const OwnArguments& a, device::cuda::Lane& lane) {
  using T = typename Engine::Element;
  constexpr int kBytes = sizeof(ForwardTiles<Engine, D, DV>);
  PLEAT_CUDA(
      cudaFuncSetAttribute(forward<Engine, D, DV>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const bool wide = a.d % cuda::kWide<T> == 0 && a.dv % cuda::kWide<T> == 0 &&
                    a.q_row % cuda::kWide<T> == 0 && a.kv_row % cuda::kWide<T> == 0;
  const dim3 grid(static_cast<unsigned>(cuda::ceil_div(a.num_queries, Engine::kBlock)),
                  static_cast<unsigned>(a.heads));
  return [=, &lane] {
    if (grid.x == 0) return;
    forward<Engine, D, DV><<<grid, Engine::kThreads, kBytes, lane.stream()>>>(a, wide);
    PLEAT_CUDA_LAUNCHED();
  };
}

}  // namespace

CudaLaunch own_forward(const OwnArguments& a, tensor::Dtype dtype, device::cuda::Lane& lane) {
  CudaLaunch out;
  with_widths(a.d, a.dv, [&](auto d, auto dv) {
    if (dtype == tensor::Dtype::BF16)
      out = launch<MatrixEngine<(dv() > 128 ? 1 : 2), 1>, d(), dv()>(a, lane);
    else if (dtype == tensor::Dtype::F32)
      out = launch<FloatEngine<(d() > 192 ? 32 : 64)>, d(), dv()>(a, lane);
  });
  return out;
}

}  // namespace pleat::kernels::attention
