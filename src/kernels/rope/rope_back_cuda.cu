// Both gradients of a qk_rope with norms, in one pass over dout and qkv.
//
// A block takes a run of rows, their cosines and sines in shared memory. A group of lanes takes one head of
// one row, a unit of it each, and has the next head's numbers on the way while it works. The sums for the
// norms' weights stay in registers for all rows of the block; v only travels.
#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/rope/rope_cuda.h"

namespace pleat::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;

// A lane's part of dout and of x in one head, and the scale of the head's norm.
template <class T, int N>
struct Unit {
  Pack<T, N> da, db, xa, xb;
  float scale;
};

template <class T, int N>
__device__ inline Unit<T, N> load_head(const RopeArgs<T>& p, uint32_t row, uint32_t head, int low, int high,
                                       int64_t norm) {
  using V = Pack<T, N>;
  const T *dout = p.from + p.at(row, head), *x = p.x + p.at(row, head);
  return {V::load(dout + low), V::load(dout + high), V::load(x + low), V::load(x + high), p.rstd[norm]};
}

// Takes one run of a unit, turned back: adds dy x scale to sums, makes it dy w, returns its product with x.
template <class T, int N>
__device__ inline float weigh_run(const Pack<T, N>& x_pack, const Pack<T, N>& w_pack, float scale,
                                  float (&dy)[N], float (&sums)[N]) {
  float x[N], w[N], dot = 0;
  x_pack.get(x);
  w_pack.get(w);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    sums[j] += dy[j] * x[j] * scale;
    dy[j] *= w[j];
    dot += dy[j] * x[j];
  }
  return dot;
}

template <class T, int N>
__device__ inline void store_run(const Pack<T, N>& x_pack, float scale, float back, const float (&dy)[N],
                                 T* to) {
  float x[N];
  x_pack.get(x);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = dy[j] * scale - x[j] * back;
  Pack<T, N> pack;
  pack.set(x);
  pack.store(to);
}

// Cosines and sines of the block's rows. The rotary width is a multiple of four here.
template <class T>
__device__ inline void load_table(const RopeArgs<T>& p, uint32_t begin, uint32_t num_rows, float4* table) {
  const auto* from = reinterpret_cast<const float4*>(p.cos_sin + static_cast<int64_t>(begin) * p.r);
  for (uint32_t i = threadIdx.x; i < num_rows * static_cast<uint32_t>(p.r) / 4; i += kThreads)
    table[i] = from[i];
  __syncthreads();
}

template <class T, int N>
__device__ inline void copy_values(const RopeArgs<T>& p, uint32_t begin, uint32_t num_rows) {
  using V = Pack<T, N>;
  constexpr uint32_t kAhead = 4;
  const uint32_t per_row = p.kv_heads * static_cast<uint32_t>(p.d / N), count = num_rows * per_row;
  const auto place = [&](uint32_t i) {
    const uint32_t row = i / per_row;
    return p.at(begin + row, p.normed()) + static_cast<int64_t>(i - row * per_row) * N;
  };
  for (uint32_t first = threadIdx.x; first < count; first += kAhead * kThreads) {
    V held[kAhead];
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i)
      if (first + i * kThreads < count) held[i] = V::load(p.from + place(first + i * kThreads));
#pragma unroll
    for (uint32_t i = 0; i < kAhead; ++i)
      if (first + i * kThreads < count) held[i].store(p.to + place(first + i * kThreads));
  }
}

// Norms of single heads: all q heads of the rows, then all k heads. parts [blocks, 2, d].
template <class T, int N, bool kInterleaved, int kLanes>
__global__ void __launch_bounds__(kThreads, 2)
    back_heads(RopeArgs<T> p, uint32_t rows_per_block, float* parts) {
  constexpr uint32_t kGroups = kThreads / kLanes;
  extern __shared__ float4 table[];
  __shared__ float tile[kGroups][kLanes][2][N];
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const uint32_t lane = threadIdx.x % kLanes, group = threadIdx.x / kLanes;
  const auto count = static_cast<uint32_t>(units.count());
  const uint32_t begin = blockIdx.x * rows_per_block, num_rows = min(rows_per_block, p.rows - begin);
  int low = 0, high = 0;
  if (lane < count) units.place(static_cast<int>(lane), low, high);
  load_table(p, begin, num_rows, table);
#pragma unroll 1
  for (uint32_t slot = 0; slot < 2; ++slot) {
    const uint32_t first_head = slot == 0 ? 0 : p.heads, num_heads = slot == 0 ? p.heads : p.kv_heads;
    const uint32_t items = num_rows * num_heads;
    const T* w = slot == 0 ? p.q_norm : p.k_norm;
    const auto wa = Pack<T, N>::load(w + low), wb = Pack<T, N>::load(w + high);
    float sa[N] = {}, sb[N] = {};
    const auto fetch = [&](uint32_t item) -> Unit<T, N> {
      if (item >= items || lane >= count) return {};
      const uint32_t in_block = item / num_heads, head = first_head + (item - in_block * num_heads);
      return load_head<T, N>(p, begin + in_block, head, low, high,
                             static_cast<int64_t>(begin + in_block) * p.normed() + head);
    };
    Unit<T, N> next = fetch(group);
    for (uint32_t first = 0; first < items; first += kGroups) {  // all lanes of a warp stay in step
      const Unit<T, N> now = next;
      const uint32_t item = first + group;
      next = fetch(item + kGroups);
      const bool mine = item < items && lane < count;
      const uint32_t in_block = mine ? item / num_heads : 0,
                     head = first_head + (item - in_block * num_heads);
      float a[N], b[N];
      now.da.get(a);
      now.db.get(b);
      units.turn(low, high, reinterpret_cast<const float*>(table) + in_block * p.r, -1.0f, a, b);
      const float part = weigh_run(now.xa, wa, now.scale, a, sa) + weigh_run(now.xb, wb, now.scale, b, sb);
      const float dot = group_sum<kLanes>(part);
      if (!mine) continue;
      const float back = now.scale * now.scale * now.scale * (dot / static_cast<float>(p.d));
      T* to = p.to + p.at(begin + in_block, head);
      store_run(now.xa, now.scale, back, a, to + low);
      store_run(now.xb, now.scale, back, b, to + high);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) tile[group][lane][0][j] = sa[j], tile[group][lane][1][j] = sb[j];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kLanes * 2 * N; i += kThreads) {
      const uint32_t of = i / (2 * N), side = i / N % 2, j = i % N;
      if (of >= count) continue;
      int its_low, its_high;
      units.place(static_cast<int>(of), its_low, its_high);
      float sum = tile[0][of][side][j];
#pragma unroll 4
      for (uint32_t g = 1; g < kGroups; ++g) sum += tile[g][of][side][j];
      parts[(static_cast<int64_t>(blockIdx.x) * 2 + slot) * p.d + (side == 0 ? its_low : its_high) + j] = sum;
    }
    __syncthreads();  // the tile is free again
  }
  copy_values<T, N>(p, begin, num_rows);
}

constexpr int kFullLanes = 8, kFullGroups = kThreads / kFullLanes;

// Norms over all of q and all of k: the block holds a whole row, kHeads heads a group. parts [blocks, H + G,
// d].
template <class T, int N, bool kInterleaved, int kHeads>
__global__ void __launch_bounds__(kThreads, kHeads == 1 ? 2 : 1)
    back_full(RopeArgs<T> p, uint32_t rows_per_block, float* parts) {
  using V = Pack<T, N>;
  extern __shared__ float4 table[];
  __shared__ float dots[2][kThreads / 32][2];
  const HeadUnits<N, kInterleaved> units{p.d, p.r};
  const uint32_t lane = threadIdx.x % kFullLanes, group = threadIdx.x / kFullLanes;
  const uint32_t begin = blockIdx.x * rows_per_block, num_rows = min(rows_per_block, p.rows - begin);
  const bool inside = lane < static_cast<uint32_t>(units.count());
  const auto head_of = [&](int i) { return group + static_cast<uint32_t>(i) * kFullGroups; };
  const auto mine = [&](int i) { return inside && head_of(i) < p.normed(); };
  const auto is_k = [&](int i) { return head_of(i) >= p.heads; };
  int low = 0, high = 0;
  if (inside) units.place(static_cast<int>(lane), low, high);
  load_table(p, begin, num_rows, table);
  V wa[kHeads], wb[kHeads];
  Unit<T, N> next[kHeads];
  float sa[kHeads][N] = {}, sb[kHeads][N] = {};
  const auto fetch = [&](int i, uint32_t in_block) -> Unit<T, N> {
    if (in_block >= num_rows || !mine(i)) return {};
    return load_head<T, N>(p, begin + in_block, head_of(i), low, high,
                           static_cast<int64_t>(begin + in_block) * 2 + is_k(i));
  };
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    const T* w = is_k(i) ? p.k_norm + static_cast<int64_t>(head_of(i) - p.heads) * p.d
                         : p.q_norm + static_cast<int64_t>(head_of(i)) * p.d;
    wa[i] = mine(i) ? V::load(w + low) : V::zero();
    wb[i] = mine(i) ? V::load(w + high) : V::zero();
    next[i] = fetch(i, 0);
  }
  for (uint32_t in_block = 0; in_block < num_rows; ++in_block) {
    Unit<T, N> now[kHeads];
    float a[kHeads][N], b[kHeads][N], q = 0, k = 0;
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      now[i] = next[i];
      next[i] = fetch(i, in_block + 1);
    }
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      now[i].da.get(a[i]);
      now[i].db.get(b[i]);
      units.turn(low, high, reinterpret_cast<const float*>(table) + in_block * p.r, -1.0f, a[i], b[i]);
      const float part = weigh_run(now[i].xa, wa[i], now[i].scale, a[i], sa[i]) +
                         weigh_run(now[i].xb, wb[i], now[i].scale, b[i], sb[i]);
      (is_k(i) ? k : q) += part;
    }
    q = warp_sum(q), k = warp_sum(k);
    float(*of_row)[2] = dots[in_block % 2];  // two in turn: one barrier a row
    if (threadIdx.x % 32 == 0) of_row[threadIdx.x / 32][0] = q, of_row[threadIdx.x / 32][1] = k;
    __syncthreads();
    q = of_row[0][0], k = of_row[0][1];
#pragma unroll
    for (int i = 1; i < kThreads / 32; ++i) q += of_row[i][0], k += of_row[i][1];
#pragma unroll
    for (int i = 0; i < kHeads; ++i) {
      if (!mine(i)) continue;
      const float scale = now[i].scale, mean = is_k(i) ? k / static_cast<float>(p.kv_heads * p.d)
                                                       : q / static_cast<float>(p.heads * p.d);
      const float back = scale * scale * scale * mean;
      T* to = p.to + p.at(begin + in_block, head_of(i));
      store_run(now[i].xa, scale, back, a[i], to + low);
      store_run(now[i].xb, scale, back, b[i], to + high);
    }
  }
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (!mine(i)) continue;
    float* to = parts + (static_cast<int64_t>(blockIdx.x) * p.normed() + head_of(i)) * p.d;
    Pack<float, 4> four;
#pragma unroll
    for (int j = 0; j < N; j += 4) {
      four.set({sa[i][j], sa[i][j + 1], sa[i][j + 2], sa[i][j + 3]});
      four.store(to + low + j);
      four.set({sb[i][j], sb[i][j + 1], sb[i][j + 2], sb[i][j + 3]});
      four.store(to + high + j);
    }
  }
  copy_values<T, N>(p, begin, num_rows);
}

template <class T>
using Back = void (*)(RopeArgs<T>, uint32_t, float*);

// The kernel that holds such heads; null: there is none.
template <class T, class L>
Back<T> pick(const RopeShape& shape) {
  constexpr int N = L::kRun;
  constexpr bool kInside = L::kInside;
  if constexpr (N > 1) {
    const int64_t count = shape.head_dim / (2 * N);
    if (shape.full_norm) {
      if (count > kFullLanes) return nullptr;
      if (shape.num_normed() <= kFullGroups) return back_full<T, N, kInside, 1>;
      if (shape.num_normed() <= 2 * kFullGroups) return back_full<T, N, kInside, 2>;
      return nullptr;
    }
    if (count <= 4) return back_heads<T, N, kInside, 4>;
    if (count <= 8) return back_heads<T, N, kInside, 8>;
    if (count <= 16) return back_heads<T, N, kInside, 16>;
    if (count <= 32) return back_heads<T, N, kInside, 32>;
  }
  return nullptr;
}

template <class T>
CudaLaunch launch_back(const RopeShape& shape, const RopeArgs<T>& p, const Arg& dq, const Arg& dk,
                       const Invocation& call, device::cuda::Lane& lane) {
  Back<T> kernel = nullptr;
  with_layout<T>(shape, {p.from, p.cos_sin, p.x, p.q_norm, p.k_norm, p.to},
                 [&](auto layout) { kernel = pick<T, decltype(layout)>(shape); });
  if (!kernel) return {};
  const RopeSums sums = rope_back_sums(shape, p.rows);
  const auto rows_per_block = static_cast<uint32_t>(sums.rows_per_block);
  const auto blocks = static_cast<unsigned>(sums.row_blocks);
  const size_t table_bytes = rows_per_block * static_cast<size_t>(p.r) * sizeof(float);
  auto* const parts = reinterpret_cast<float*>(call.scratch_for(sums.bytes()));
  return [=, stream = lane.stream(), to_q = SumTarget(dq), to_k = SumTarget(dk)] {
    if (blocks > 0) {
      kernel<<<blocks, kThreads, table_bytes, stream>>>(p, rows_per_block, parts);
      PLEAT_CUDA_LAUNCHED();
    }
    launch_reduce_parts(stream, parts, static_cast<int>(blocks), sums.stride, to_q, &to_k);
  };
}

}  // namespace

CudaLaunch prepare_rope_backward(const Invocation& call, device::cuda::Lane& lane) {
  const signature::qk_rope_back::BackwardInput<Arg> args(call.args);
  const RopeShape shape = rope_shape(call);
  CudaLaunch out;
  if (!is_stored(args.dq_norm.dtype) || !is_stored(args.dk_norm.dtype)) return out;
  with_float(args.dout.dtype, [&](auto zero) {
    using T = decltype(zero);
    const RopeArgs<T> p = rope_input_args<T>(shape, args);
    out = launch_back(shape, p, args.dq_norm, args.dk_norm, call, lane);
    if (out) return;
    out = [input = launch_rope_input(shape, p, lane),
           weight = launch_rope_weight(shape, p, args.dq_norm, args.dk_norm, call, lane)] {
      weight();
      input();
    };
  });
  return out;
}

}  // namespace pleat::kernels
