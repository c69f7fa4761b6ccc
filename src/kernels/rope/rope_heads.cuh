// What the kernels over packed q|k|v share: their arguments, a lane's unit of a head, and the choice of a
// layout.
#pragma once

#include <initializer_list>

#include "base/error.h"
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/rope/rope.h"
#include "kernels/rope/rotate.cuh"

namespace pleat::kernels::cuda {

template <class T>
struct RopeArgs {
  const T* from;  // qkv, or dout
  const float* cos_sin;
  const T *x, *q_norm, *k_norm;  // x: qkv of the backward form
  T* to;
  float* rstd;  // written forward, read backward
  uint32_t rows, heads, kv_heads;
  int d, r;
  float eps;
  __device__ uint32_t all_heads() const { return heads + 2 * kv_heads; }
  __device__ uint32_t normed() const { return heads + kv_heads; }
  __device__ int64_t at(uint32_t row, uint32_t head) const {
    return (static_cast<int64_t>(row) * all_heads() + head) * d;
  }
};

template <class T, int N>
__device__ inline void load_unit(const T* head, int low, int high, int d, float (&a)[N], float (&b)[N]) {
  Pack<T, N>::load(head + low).get(a);
  if (N > 1 || high < d)
    Pack<T, N>::load(head + high).get(b);
  else
    b[0] = 0;
}

template <class T, int N>
__device__ inline void store_unit(T* head, int low, int high, int d, const float (&a)[N],
                                  const float (&b)[N]) {
  Pack<T, N> pack;
  pack.set(a);
  pack.store(head + low);
  if (N > 1 || high < d) {
    pack.set(b);
    pack.store(head + high);
  }
}

template <int kLanes>
__device__ inline float group_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// dout of one unit, turned back where its head was turned.
template <class T, int N, bool kInterleaved>
__device__ inline void load_turned(const RopeArgs<T>& p, const HeadUnits<N, kInterleaved>& units,
                                   uint32_t row, uint32_t head, int low, int high, float (&a)[N],
                                   float (&b)[N]) {
  load_unit(p.from + p.at(row, head), low, high, p.d, a, b);
  if (head < p.normed()) units.turn(low, high, p.cos_sin + static_cast<int64_t>(row) * p.r, -1.0f, a, b);
}

template <int N, bool kInterleaved>
struct Layout {
  static constexpr int kRun = N;
  static constexpr bool kInside = kInterleaved;
};

// Calls f with the Layout that the shape and the addresses allow.
template <class T, class F>
void with_layout(const RopeShape& shape, std::initializer_list<const void*> addresses, F&& f) {
  constexpr int kRun = kWide<T>;
  const bool aligned = all_aligned(addresses);
  if (shape.interleaved) {
    if (aligned && HeadUnits<kRun, true>::fits(shape.head_dim, shape.rotary_dim))
      f(Layout<kRun, true>{});
    else
      f(Layout<1, true>{});
  } else {
    if (aligned && HeadUnits<kRun, false>::fits(shape.head_dim, shape.rotary_dim))
      f(Layout<kRun, false>{});
    else
      f(Layout<1, false>{});
  }
}

// The shape in numbers; the addresses are left to the caller.
template <class T>
RopeArgs<T> rope_args(const RopeShape& shape, int64_t rows) {
  if (rows * shape.width() >= int64_t{1} << 40 || rows * (shape.heads + 2 * shape.kv_heads) >= int64_t{1}
                                                                                                   << 26)
    base::fail("[qk_rope] {} rows of {} heads are more than one launch takes", rows,
               shape.heads + 2 * shape.kv_heads);
  RopeArgs<T> p{};
  p.rows = static_cast<uint32_t>(rows);
  p.heads = static_cast<uint32_t>(shape.heads);
  p.kv_heads = static_cast<uint32_t>(shape.kv_heads);
  p.d = static_cast<int>(shape.head_dim);
  p.r = static_cast<int>(shape.rotary_dim);
  return p;
}

}  // namespace pleat::kernels::cuda
