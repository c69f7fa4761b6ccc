// The largest logit of a row and the sum of its exponentials in one look, however the row is read.
//
// A thread takes chunks without a branch, a warp makes one part of what its threads found, and the parts of
// a row are put together in an order fixed by their number. The largest logit passes over NaN; the sum keeps
// it.
#pragma once

#include <type_traits>

#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/reduce.cuh"

namespace pleat::kernels::cuda {

__device__ inline float lowest() { return __int_as_float(0xff800000); }
// What is taken off before an exponential: a row of nothing but -inf has no maximum to take off.
__device__ inline float shift_of(float top) { return top == lowest() ? 0.0f : top; }

// bf16 logits carry 8 bits: the fast exponential is exact enough for them. It sends results below the
// normal numbers to zero, which spares the instructions that would save them.
template <class T>
__device__ inline float exp_of(float x) {
  if constexpr (sizeof(T) == 2) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
  } else {
    return expf(x);
  }
}

constexpr int kChunk = 4;  // 16-byte units a thread takes at a time

template <class T>
__device__ inline Wide<T> lowest_unit() {
  constexpr uint32_t kWord = sizeof(T) == 2 ? 0xff80ff80u : 0xff800000u;
  const uint4 words = make_uint4(kWord, kWord, kWord, kWord);
  return *reinterpret_cast<const Wide<T>*>(&words);
}

// kChunk units, kStride apart, from `from` on, of which `left` units are left; -inf behind the last.
template <int kStride, class T>
__device__ inline void load_chunk(const T* from, int left, Wide<T> (&chunk)[kChunk]) {
#pragma unroll
  for (int i = 0; i < kChunk; ++i)
    chunk[i] = i * kStride < left ? Wide<T>::load(from + i * kStride * kWide<T>) : lowest_unit<T>();
}

// Calls f(from, left) for a thread's chunks among `left` units from `from` on. Where a whole chunk is there,
// `left` is a constant and load_chunk asks for it without a condition.
template <int kStride, class T, class F>
__device__ inline void for_chunks(T* from, int left, F&& f) {
  constexpr int kStep = kChunk * kStride;
  for (; left > kStep - kStride; left -= kStep, from += kStep * kWide<std::remove_const_t<T>>) f(from, kStep);
  if (left > 0) f(from, left);
}

template <int kUnits>
__device__ inline float largest(const Wide<float> (&chunk)[kUnits]) {
  float most = lowest();
#pragma unroll
  for (int i = 0; i < kUnits; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) most = fmaxf(most, chunk[i].vec.at[j]);
  return most;
}
// Two at a time.
template <int kUnits>
__device__ inline float largest(const Wide<bf16> (&chunk)[kUnits]) {
  __nv_bfloat162 of_unit[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const auto* two = reinterpret_cast<const __nv_bfloat162*>(&chunk[i].words);
    of_unit[i] = __hmax2(__hmax2(two[0], two[1]), __hmax2(two[2], two[3]));
  }
#pragma unroll
  for (int i = 1; i < kUnits; ++i) of_unit[0] = __hmax2(of_unit[0], of_unit[i]);
  return fmaxf(__low2float(of_unit[0]), __high2float(of_unit[0]));
}

// What a thread has seen of a row.
template <class T>
struct OnlineSum {
  float top = lowest(), sum = 0;  // of exp(x - shift_of(top))

  template <int kUnits>
  __device__ void take(const Wide<T> (&chunk)[kUnits]) {
    const float now = fmaxf(top, largest(chunk)), shift = shift_of(now);
    float parts[4] = {};  // so that sums do not wait for each other
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float a[kWide<T>];
      chunk[i].get(a);
#pragma unroll
      for (int j = 0; j < kWide<T>; ++j) parts[(kUnits == 1 ? j : i) % 4] += exp_of<T>(a[j] - shift);
    }
    sum = sum * exp_of<T>(top - shift) + ((parts[0] + parts[1]) + (parts[2] + parts[3]));
    top = now;
  }
  __device__ void take(float x) {
    const float now = fmaxf(top, x), shift = shift_of(now);
    sum = sum * exp_of<T>(top - shift) + exp_of<T>(x - shift);
    top = now;
  }
};

// What a warp, or a whole row, has.
struct alignas(16) RowPart {
  float top, label_logit;  // label_logit: 0 unless the label is among the part's columns
  double sum;              // of exp(x - shift_of(top))
};

// What the threads' sums are added in. They are floats themselves; for bf16 logits more bits would only be
// slower to pass between lanes.
template <class T>
using PartSum = std::conditional_t<sizeof(T) == 2, float, double>;

template <class T>
__device__ inline RowPart warp_part(const OnlineSum<T>& mine) {
  using Sum = PartSum<T>;
  const float top = warp_most(mine.top);
  return {top, 0.0f,
          static_cast<double>(
              warp_sum(static_cast<Sum>(mine.sum) * static_cast<Sum>(exp_of<T>(mine.top - shift_of(top)))))};
}

// Of kParts parts, a power of two. Every thread of the warp gets the same.
template <class T, int kParts>
__device__ inline RowPart combine_parts(const RowPart* parts) {
  constexpr int kLanes = kParts < 32 ? kParts : 32, kEach = kParts / kLanes;
  RowPart mine[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine[i] = parts[threadIdx.x % kLanes + i * kLanes];
  float top = mine[0].top;
  unsigned label = __float_as_uint(mine[0].label_logit);
#pragma unroll
  for (int i = 1; i < kEach; ++i) {
    top = fmaxf(top, mine[i].top);
    label |= __float_as_uint(mine[i].label_logit);
  }
  top = warp_most(top);
  label = __reduce_or_sync(0xffffffffu, label);  // all but one are 0
  using Sum = PartSum<T>;
  Sum sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    sum += static_cast<Sum>(mine[i].sum) * static_cast<Sum>(exp_of<T>(mine[i].top - shift_of(top)));
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return {top, __uint_as_float(label), static_cast<double>(sum)};
}

}  // namespace pleat::kernels::cuda
