// Own backward: row sums of dout * out, then one kernel that owns dq and one that owns dk and dv. Both
// rebuild the scores of a tile; nothing is added to memory by two blocks of threads. What suits them goes to
// the kernels of attention_gradient.cuh instead.
#include "device/cuda/check.h"
#include "kernels/attention/attention_gradient.h"
#include "kernels/attention/attention_own.h"
#include "kernels/attention/attention_tiles.cuh"
#include "kernels/attention/attention_widths.h"
#include "kernels/cuda/reduce.cuh"

namespace pleat::kernels::attention {
namespace {

constexpr float kLog2E = 1.4426950408889634f;
constexpr int kDotThreads = 256;

// dots[i, h] = sum over the head of dout * out. One warp each.
template <class T>
__global__ void __launch_bounds__(kDotThreads) row_dots(const OwnArguments a, float* dots) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kDotThreads / 32) + threadIdx.x / 32;
  if (at >= static_cast<int64_t>(a.num_queries) * a.heads || (a.listed && *a.listed)) return;
  const int64_t begin = at / a.heads * a.out_row + at % a.heads * a.dv;
  const T *x = static_cast<const T*>(a.dout) + begin, *y = static_cast<const T*>(a.out) + begin;
  float sum = 0;
  for (int c = static_cast<int>(threadIdx.x % 32); c < a.dv; c += 32)
    sum = fmaf(cuda::to_float(x[c]), cuda::to_float(y[c]), sum);
  sum = cuda::warp_sum(sum);
  if (threadIdx.x % 32 == 0) dots[at] = sum;
}

template <class Engine, int D, int DV>
struct BackwardTiles {
  using T = typename Engine::Element;
  static constexpr int B = Engine::kBlock, kLdQ = D + Engine::kPad, kLdV = DV + Engine::kPad,
                       kLdP = B + Engine::kPad;
  T q[B * kLdQ], k[B * kLdQ], dout[B * kLdV], v[B * kLdV], p[B * kLdP], ds[B * kLdP];
  int row[B], low[B];
  float lse[B], dot[B];
};

// Queries of one head beside what backward needs of each row.
template <class Engine, int D, int DV>
__device__ void load_queries(BackwardTiles<Engine, D, DV>& tiles, const OwnArguments& a, const float* dots,
                             int first, int head, bool wide) {
  using T = typename Engine::Element;
  const int rows = a.num_queries - first, t = static_cast<int>(threadIdx.x);
  load_rows<Engine, Engine::kBlock, D>(
      tiles.q, static_cast<const T*>(a.q) + first * a.q_row + static_cast<int64_t>(head) * a.d, a.q_row, rows,
      a.d, wide);
  load_rows<Engine, Engine::kBlock, DV>(
      tiles.dout, static_cast<const T*>(a.dout) + first * a.out_row + static_cast<int64_t>(head) * a.dv,
      a.out_row, rows, a.dv, wide);
  if (t < Engine::kBlock) {
    const int64_t at = (first + static_cast<int64_t>(t)) * a.heads + head;
    tiles.lse[t] = t < rows ? a.lse[at] * kLog2E : 0.0f;
    tiles.dot[t] = t < rows ? dots[at] : 0.0f;
  }
}

template <class Engine, int D, int DV>
__device__ void load_keys(BackwardTiles<Engine, D, DV>& tiles, const OwnArguments& a, int key, int kv_head,
                          bool wide) {
  using T = typename Engine::Element;
  load_rows<Engine, Engine::kBlock, D>(
      tiles.k, static_cast<const T*>(a.k) + key * a.kv_row + static_cast<int64_t>(kv_head) * a.d, a.kv_row,
      a.num_keys - key, a.d, wide);
  load_rows<Engine, Engine::kBlock, DV>(
      tiles.v, static_cast<const T*>(a.v) + key * a.kv_row + static_cast<int64_t>(kv_head) * a.dv, a.kv_row,
      a.num_keys - key, a.dv, wide);
}

// From the tiles of queries and keys to ds, and to p where it is wanted. Hidden pairs become zero.
template <bool kWantP, class Engine, int D, int DV>
__device__ void differentiate(BackwardTiles<Engine, D, DV>& tiles, int key, float scale) {
  using Tiles = BackwardTiles<Engine, D, DV>;
  constexpr int B = Tiles::B;
  typename Engine::template Tile<B> s, dp;
  clear(s);
  clear(dp);
  Engine::template nt<B, D>(s, tiles.q, Tiles::kLdQ, tiles.k, Tiles::kLdQ);
  Engine::template nt<B, DV>(dp, tiles.dout, Tiles::kLdV, tiles.v, Tiles::kLdV);
#pragma unroll
  for (int i = 0; i < Engine::kRows; ++i) {
    const int r = Engine::row(i), row = tiles.row[r], low = tiles.low[r];
    const float lse = tiles.lse[r], dot = tiles.dot[r];
#pragma unroll
    for (int j = 0; j < Engine::template kColumns<B>; ++j) {
      const int c = Engine::template column<B>(j);
      const bool seen = key + c >= low && key + c <= row;
      s[i][j] = seen ? exp2f(s[i][j] * scale - lse) : 0.0f;
      dp[i][j] = seen ? s[i][j] * (dp[i][j] - dot) : 0.0f;
    }
  }
  if constexpr (kWantP) Engine::template put<B>(tiles.p, Tiles::kLdP, s);
  Engine::template put<B>(tiles.ds, Tiles::kLdP, dp);
}

// Rows below num_rows and columns below width of a tile of sums, times `factor`.
template <class Engine, int N, class T>
__device__ void store(T* to, int64_t ld, int num_rows, int width, float factor,
                      const typename Engine::template Tile<N>& tile) {
#pragma unroll
  for (int i = 0; i < Engine::kRows; ++i) {
    const int r = Engine::row(i);
    if (r >= num_rows) continue;
#pragma unroll
    for (int j = 0; j < Engine::template kColumns<N>; ++j) {
      const int c = Engine::template column<N>(j);
      if (c < width) to[r * ld + c] = cuda::from_float<T>(tile[i][j] * factor);
    }
  }
}

template <class Engine, int D, int DV>
__global__ void __launch_bounds__(Engine::kThreads)
    query_gradient(const OwnArguments a, const float* dots, bool wide) {
  using Tiles = BackwardTiles<Engine, D, DV>;
  using T = typename Tiles::T;
  if (a.listed && *a.listed) return;
  constexpr int B = Tiles::B;
  extern __shared__ __align__(16) unsigned char memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * B, head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  load_queries(tiles, a, dots, first, head, wide);
  BlockRows block{tiles.row, tiles.low, 0, 0};
  load_block_rows<B>(block, first, a.num_queries, a.query_row, a.doc_start, a.window);
  typename Engine::template Tile<D> dq;
  clear(dq);
  for (int key = block.least / B * B; key <= block.most; key += B) {
    __syncthreads();
    load_keys(tiles, a, key, kv_head, wide);
    commit();
    wait<0>();
    __syncthreads();
    differentiate<false>(tiles, key, a.scale * kLog2E);
    __syncthreads();
    Engine::template nn<D, B>(dq, tiles.ds, Tiles::kLdP, tiles.k, Tiles::kLdQ);
  }
  store<Engine, D>(static_cast<T*>(a.dq) + first * a.dq_row + static_cast<int64_t>(head) * a.d, a.dq_row,
                   a.num_queries - first, a.d, a.scale, dq);
}

// Queries in ascending blocks, inside a block the heads that share this key/value head in ascending order.
template <class Engine, int D, int DV>
__global__ void __launch_bounds__(Engine::kThreads)
    key_gradient(const OwnArguments a, const float* dots, bool wide) {
  using Tiles = BackwardTiles<Engine, D, DV>;
  using T = typename Tiles::T;
  if (a.listed && *a.listed) return;
  constexpr int B = Tiles::B;
  extern __shared__ __align__(16) unsigned char memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory);
  const int key = static_cast<int>(blockIdx.x) * B, kv_head = static_cast<int>(blockIdx.y);
  const int group = a.heads / a.kv_heads;
  load_keys(tiles, a, key, kv_head, wide);
  typename Engine::template Tile<D> dk;
  typename Engine::template Tile<DV> dv;
  clear(dk);
  clear(dv);
  BlockRows block{tiles.row, tiles.low, 0, 0};
  for (int first = a.query_row ? 0 : key; first < a.num_queries; first += B) {
    __syncthreads();  // readers of the last block's rows are done
    load_block_rows<B>(block, first, a.num_queries, a.query_row, a.doc_start, a.window);
    if (block.most < key) continue;
    if (block.least >= key + B) {
      if (!a.query_row) break;  // no later row sees these keys either
      continue;
    }
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      __syncthreads();
      load_queries(tiles, a, dots, first, head, wide);
      commit();
      wait<0>();
      __syncthreads();
      differentiate<true>(tiles, key, a.scale * kLog2E);
      __syncthreads();
      Engine::template tn<DV, B>(dv, tiles.p, Tiles::kLdP, tiles.dout, Tiles::kLdV);
      Engine::template tn<D, B>(dk, tiles.ds, Tiles::kLdP, tiles.q, Tiles::kLdQ);
    }
  }
  store<Engine, D>(static_cast<T*>(a.dk) + key * a.dkv_row + static_cast<int64_t>(kv_head) * a.d, a.dkv_row,
                   a.num_keys - key, a.d, a.scale, dk);
  store<Engine, DV>(static_cast<T*>(a.dv_to) + key * a.dkv_row + static_cast<int64_t>(kv_head) * a.dv,
                    a.dkv_row, a.num_keys - key, a.dv, 1.0f, dv);
}

template <class Engine, int D, int DV>
CudaLaunch gradients(const OwnArguments& a, std::span<std::byte> scratch, device::cuda::Lane& lane) {
  using T = typename Engine::Element;
  constexpr int kBytes = sizeof(BackwardTiles<Engine, D, DV>);
  for (auto* kernel : {query_gradient<Engine, D, DV>, key_gradient<Engine, D, DV>})
    PLEAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const bool wide = a.d % cuda::kWide<T> == 0 && a.dv % cuda::kWide<T> == 0 &&
                    a.q_row % cuda::kWide<T> == 0 && a.kv_row % cuda::kWide<T> == 0 &&
                    a.out_row % cuda::kWide<T> == 0;
  const auto blocks = [](int64_t n) { return static_cast<unsigned>(cuda::ceil_div(n, Engine::kBlock)); };
  const dim3 query_grid(blocks(a.num_queries), static_cast<unsigned>(a.heads)),
      key_grid(blocks(a.num_keys), static_cast<unsigned>(a.kv_heads));
  const int64_t num_dots = static_cast<int64_t>(a.num_queries) * a.heads;
  const unsigned dot_blocks = static_cast<unsigned>(cuda::ceil_div(num_dots, kDotThreads / 32));
  float* const dots = reinterpret_cast<float*>(scratch_for(scratch, row_dot_bytes(a.num_queries, a.heads)));
  return [=, stream = lane.stream()] {
    if (num_dots > 0) {
      row_dots<T><<<dot_blocks, kDotThreads, 0, stream>>>(a, dots);
      PLEAT_CUDA_LAUNCHED();
      query_gradient<Engine, D, DV><<<query_grid, Engine::kThreads, kBytes, stream>>>(a, dots, wide);
      PLEAT_CUDA_LAUNCHED();
    }
    if (key_grid.x > 0) {
      key_gradient<Engine, D, DV><<<key_grid, Engine::kThreads, kBytes, stream>>>(a, dots, wide);
      PLEAT_CUDA_LAUNCHED();
    }
  };
}

}  // namespace

CudaLaunch own_backward(const OwnArguments& a, tensor::Dtype dtype, std::span<std::byte> scratch,
                        device::cuda::Lane& lane) {
  if (suits_hopper_gradients(a, dtype)) return hopper_gradients(a, scratch, lane);
  CudaLaunch out;
  with_widths(a.d, a.dv, [&](auto d, auto dv) {
    if (dtype == tensor::Dtype::BF16)
      out = gradients<MatrixEngine<1, 2>, d(), dv()>(a, scratch, lane);
    else if (dtype == tensor::Dtype::F32)
      out = gradients<FloatEngine<(d() > 192 ? 32 : 64)>, d(), dv()>(a, scratch, lane);
  });
  return out;
}

}  // namespace pleat::kernels::attention
