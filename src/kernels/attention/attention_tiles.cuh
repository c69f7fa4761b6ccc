// Tiles in shared memory and products of them, for the project's own attention kernels.
//
// An Engine says which elements of a product [kBlock, N] a thread holds, and multiplies:
//   nt: c += a b^T   a [kBlock, K], b [N, K]
//   nn: c += a b     a [kBlock, K], b [K, N]
//   tn: c += a^T b   a [K, kBlock], b [K, N]
// A thread holds kRows rows; row r of the tile belongs to kRowLanes neighbouring lanes of one warp (of one
// column group; there are kGroups, which share the columns). Rows of tiles in shared memory are kPad elements
// longer than their width, so that neither engine's reads collide in a bank.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/types.cuh"

namespace pleat::kernels::attention {

using cuda::bf16;

// Plain float: 16 x 16 threads.
template <int kBlockRows>
struct FloatEngine {
  using Element = float;
  static constexpr int kBlock = kBlockRows, kThreads = 256, kRows = kBlock / 16, kRowLanes = 16, kPad = 4;
  static constexpr bool kThroughShared = true;
  template <int N>
  static constexpr int kColumns = N / 16;
  template <int N>
  using Tile = float[kRows][kColumns<N>];

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 16 * kRows + i; }
  template <int N>
  __device__ static int column(int j) {
    return static_cast<int>(threadIdx.x) % 16 + 16 * j;
  }

  // c as a tile in shared memory.
  template <int N>
  __device__ static void put(float* to, int ld, const Tile<N>& c) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns<N>; ++j) to[row(i) * ld + column<N>(j)] = c[i][j];
  }

  template <int N, int K>
  __device__ static void nt(Tile<N>& c, const float* a, int lda, const float* b, int ldb) {
    for (int k = 0; k < K; k += 4) {
      float4 x[kRows], y[kColumns<N>];
#pragma unroll
      for (int i = 0; i < kRows; ++i) x[i] = *reinterpret_cast<const float4*>(a + row(i) * lda + k);
#pragma unroll
      for (int j = 0; j < kColumns<N>; ++j)
        y[j] = *reinterpret_cast<const float4*>(b + column<N>(j) * ldb + k);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns<N>; ++j) {
          c[i][j] = fmaf(x[i].x, y[j].x, c[i][j]);
          c[i][j] = fmaf(x[i].y, y[j].y, c[i][j]);
          c[i][j] = fmaf(x[i].z, y[j].z, c[i][j]);
          c[i][j] = fmaf(x[i].w, y[j].w, c[i][j]);
        }
    }
  }
  template <int N, int K>
  __device__ static void nn(Tile<N>& c, const float* a, int lda, const float* b, int ldb) {
    rows_times<N, K>(c, a, lda, 1, b, ldb);
  }
  template <int N, int K>
  __device__ static void tn(Tile<N>& c, const float* a, int lda, const float* b, int ldb) {
    rows_times<N, K>(c, a, 1, lda, b, ldb);
  }
  // c += a b with a [kBlock, K] as a product left it; `tile` holds kBlock rows of K + kPad.
  template <int N, int K>
  __device__ static void nn_held(Tile<N>& c, const Tile<K>& a, float* tile, const float* b, int ldb) {
    put<K>(tile, K + kPad, a);
    __syncwarp();  // a warp reads only rows that it wrote
    nn<N, K>(c, tile, K + kPad, b, ldb);
  }

 private:
  template <int N, int K>
  __device__ static void rows_times(Tile<N>& c, const float* a, int row_step, int k_step, const float* b,
                                    int ldb) {
#pragma unroll 2
    for (int k = 0; k < K; ++k) {
      float x[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) x[i] = a[row(i) * row_step + k * k_step];
#pragma unroll
      for (int j = 0; j < kColumns<N>; ++j) {
        const float y = b[k * ldb + column<N>(j)];
#pragma unroll
        for (int i = 0; i < kRows; ++i) c[i][j] = fmaf(x[i], y, c[i][j]);
      }
    }
  }
};

// bf16 through tensor cores: a warp multiplies kRowTiles times 16 rows by 1 / kGroups of the columns.
template <int kRowTiles, int kGroups>
struct MatrixEngine {
  using Element = bf16;
  static constexpr int kBlock = 64 * kRowTiles, kThreads = 128 * kGroups, kRows = 2 * kRowTiles;
  static constexpr int kRowLanes = 4, kPad = 8;
  static constexpr bool kThroughShared = false;
  template <int N>
  static constexpr int kColumns = N / 4 / kGroups;
  template <int N>
  using Tile = float[kRows][kColumns<N>];

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * (16 * kRowTiles); }
  template <int N>
  __device__ static int first_column() {
    return static_cast<int>(threadIdx.x) / 128 * (N / kGroups);
  }
  __device__ static int row(int i) { return first_row() + lane() / 4 + 8 * i; }
  template <int N>
  __device__ static int column(int j) {
    return first_column<N>() + j / 2 * 8 + lane() % 4 * 2 + j % 2;
  }

  // A thread's columns come in pairs.
  template <int N>
  __device__ static void put(bf16* to, int ld, const Tile<N>& c) {
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < kColumns<N>; j += 2)
        *reinterpret_cast<__nv_bfloat162*>(to + row(i) * ld + column<N>(j)) =
            __floats2bfloat162_rn(c[i][j], c[i][j + 1]);
  }

  template <int N, int K>
  __device__ static void nt(Tile<N>& c, const bf16* a, int lda, const bf16* b, int ldb) {
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned x[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        load<false>(x[t], a + (first_row() + 16 * t + lane() % 16) * lda + k + lane() / 16 * 8);
#pragma unroll
      for (int n = 0; n < N / kGroups; n += 16) {
        unsigned y[4];  // columns n .. n + 7 in the first two, the next eight in the others
        load<false>(
            y, b + (first_column<N>() + n + lane() / 16 * 8 + lane() % 8) * ldb + k + lane() / 8 % 2 * 8);
        multiply<N>(c, n, x, y);
      }
    }
  }
  template <int N, int K>
  __device__ static void nn(Tile<N>& c, const bf16* a, int lda, const bf16* b, int ldb) {
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned x[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        load<false>(x[t], a + (first_row() + 16 * t + lane() % 16) * lda + k + lane() / 16 * 8);
      columns<N>(c, x, b + k * ldb, ldb);
    }
  }
  template <int N, int K>
  __device__ static void tn(Tile<N>& c, const bf16* a, int lda, const bf16* b, int ldb) {
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned x[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
        load<true>(x[t],
                   a + (k + lane() / 16 * 8 + lane() % 8) * lda + first_row() + 16 * t + lane() / 8 % 2 * 8);
      columns<N>(c, x, b + k * ldb, ldb);
    }
  }
  // c += a b with a [kBlock, K] as a product left it: a thread holds just what the next product wants of it.
  template <int N, int K>
  __device__ static void nn_held(Tile<N>& c, const Tile<K>& a, bf16*, const bf16* b, int ldb) {
    static_assert(kGroups == 1);
#pragma unroll
    for (int k = 0; k < K; k += 16) {
      unsigned x[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[t][e] = pair(a[2 * t + e % 2][k / 4 + e / 2 * 2], a[2 * t + e % 2][k / 4 + e / 2 * 2 + 1]);
      columns<N>(c, x, b + k * ldb, ldb);
    }
  }

 private:
  __device__ static unsigned pair(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    unsigned bits;
    memcpy(&bits, &both, sizeof bits);
    return bits;
  }
  // b: 16 rows of N columns.
  template <int N>
  __device__ static void columns(Tile<N>& c, const unsigned (&x)[kRowTiles][4], const bf16* b, int ldb) {
#pragma unroll
    for (int n = 0; n < N / kGroups; n += 16) {
      unsigned y[4];
      load<true>(y, b + (lane() / 8 % 2 * 8 + lane() % 8) * ldb + first_column<N>() + n + lane() / 16 * 8);
      multiply<N>(c, n, x, y);
    }
  }
  // Sixteen columns from n on.
  template <int N>
  __device__ static void multiply(Tile<N>& c, int n, const unsigned (&x)[kRowTiles][4],
                                  const unsigned (&y)[4]) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int j = n / 4 + 2 * half;
        multiply(c[2 * t][j], c[2 * t][j + 1], c[2 * t + 1][j], c[2 * t + 1][j + 1], x[t], y[2 * half],
                 y[2 * half + 1]);
      }
  }
  // Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
  template <bool kTransposed>
  __device__ static void load(unsigned (&x)[4], const bf16* from) {
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(from));
    if constexpr (kTransposed)
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(address)
                   : "memory");
    else
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(address)
                   : "memory");
  }
  __device__ static void multiply(float& c0, float& c1, float& c2, float& c3, const unsigned (&a)[4],
                                  unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <int R, int C>
__device__ inline void clear(float (&tile)[R][C]) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int j = 0; j < C; ++j) tile[i][j] = 0;
}

// Asynchronous copies: what was asked for since the last commit is one group; wait<N> returns when all but
// the last N groups of this thread have arrived. A barrier shows them to the others.
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ inline void wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// kCount rows of a head from memory; what lies past num_rows or past `width` becomes zero. `wide`: width and
// ld are multiples of 16 bytes. The copies are asynchronous.
template <class Engine, int kCount, int kWidth, class T>
__device__ inline void load_rows(T* to, const T* from, int64_t ld, int num_rows, int width, bool wide) {
  constexpr int kVec = cuda::kWide<T>, kLd = kWidth + Engine::kPad;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kCount * (kWidth / kVec); i += Engine::kThreads) {
    const int r = i / (kWidth / kVec), c = i % (kWidth / kVec) * kVec;
    if (wide && r < num_rows && c < width) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                       static_cast<unsigned>(__cvta_generic_to_shared(to + r * kLd + c))),
                   "l"(from + r * ld + c)
                   : "memory");
      continue;
    }
    cuda::Vec<T, kVec> x;
#pragma unroll
    for (int e = 0; e < kVec; ++e)
      x.at[e] = r < num_rows && c + e < width ? from[r * ld + c + e] : cuda::from_float<T>(0.0f);
    x.store(to + r * kLd + c);
  }
}

// Which rows of the microbatch the queries of a block are and see.
struct BlockRows {
  int *row, *low;   // shared memory, kBlock each; row -1: no query there
  int least, most;  // over the block: least low, most row
};

// Needs all threads; ends with everything visible. `first`: the block's first query.
template <int kBlock>
__device__ inline void load_block_rows(BlockRows& block, int first, int num_queries, const int32_t* query_row,
                                       const int32_t* doc_start, int window) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < kBlock) {
    int row = -1, low = 0x7fffffff;
    if (first + t < num_queries) {
      row = query_row ? query_row[first + t] : first + t;
      low = doc_start[row];
      if (window > 0) low = max(low, row - window + 1);
    }
    block.row[t] = row;
    block.low[t] = low;
  }
  __syncthreads();
  int least = 0x7fffffff, most = -1;
#pragma unroll
  for (int i = 0; i < kBlock; i += 32) {
    least = min(least, block.low[i + t % 32]);
    most = max(most, block.row[i + t % 32]);
  }
  block.least = __reduce_min_sync(0xffffffffu, least);
  block.most = __reduce_max_sync(0xffffffffu, most);
}

}  // namespace pleat::kernels::attention
