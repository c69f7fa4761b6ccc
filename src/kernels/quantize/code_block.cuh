// Codes E4M3 on the GPU: what quantize_cpu.cpp says of a block's scale and its codes, bit for bit, for numbers that are
// floats; and how codes fared.
//
// Powers of two are made of bits, products with them are exact or fall below what a code can be, and the processor's
// conversion rounds as E4M3::code does. It differs for infinity alone, which it would make the largest code.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/types.cuh"

namespace pleat::kernels::cuda {

constexpr int kBlock =
    128;  // numbers of a row that share a scale; rows of a column; both sides of a weight's block

__device__ inline float power_of_two(int exponent) {  // -126 to 127
  return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

// The least e for which size / 2^(e + shift) does not saturate, as an exponent a scale can have; 0 for 0. What
// scale_exponent<E4M3> gives for size x 2^shift. 448 = 1.75 x 2^8; sizes below the normal floats have the least scale.
__device__ inline int scale_exponent(float size, int shift = 0) {
  const uint32_t bits = __float_as_uint(size);
  if (bits == 0) return 0;
  const int e = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffff) > 0x600000 ? 1 : 0) + shift;
  return min(max(e, -126), 127);
}

// Four numbers, scaled, to four codes; the first is the lowest byte. Infinity must not come here.
__device__ inline uint32_t codes_of(float a, float b, float c, float d) {
  const auto two = [](float low, float high) {
    return static_cast<uint32_t>(__nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3));
  };
  return two(a, b) | two(c, d) << 16;
}
// And back: values of four codes.
__device__ inline void values_of(uint32_t codes, float (&to)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half2_raw pair =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes >> (16 * i)), __NV_E4M3);
    const float2 two = __half22float2(__half2(pair));
    to[2 * i] = two.x, to[2 * i + 1] = two.y;
  }
}

// Counts of numbers that are no zeros, of what became 0 of them, and of what became NaN, as code_counts.h counts them;
// and the largest finite size. Nothing saturates: a float's block has a scale for its largest.
struct CodeCount {
  uint32_t numbers = 0, flushed = 0, nan = 0;
  float largest = 0;

  // Numbers with their codes; they count `times`.
  template <int N>
  __device__ void see(const float (&x)[N], const uint32_t (&codes)[N / 4], uint32_t times) {
    uint32_t given = 0, kept = 0, lost = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) given += x[i] != 0;
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const uint32_t sizes = codes[i] & 0x7f7f7f7fu;
      kept += static_cast<uint32_t>(__popc((sizes + 0x7f7f7f7fu) & 0x80808080u));
      lost += static_cast<uint32_t>(__popc((sizes + 0x01010101u) & 0x80808080u));
    }
    numbers += given * times, flushed += (given - kept) * times, nan += lost * times;
  }
  __device__ void see_largest(float size, uint32_t times) {
    if (times > 0) largest = fmaxf(largest, size);
  }
};

struct CodeCounters {
  unsigned long long* counts;   // numbers, saturated, flushed, NaN; null: nobody counts
  unsigned long long* largest;  // bits of a double, which are ordered as sizes are
  const int64_t* place;  // in a group of ranks that code the same: the first counts. Null: this one does

  __device__ bool counting() const { return counts && (!place || *place == 0); }
};

// By all threads of a block. Integers and a maximum: the order in which blocks come does not matter.
template <int kThreads>
__device__ inline void add_counts(const CodeCounters& to, const CodeCount& own) {
  const uint64_t sums[] = {block_sum<kThreads>(static_cast<uint64_t>(own.numbers)), 0,
                           block_sum<kThreads>(static_cast<uint64_t>(own.flushed)),
                           block_sum<kThreads>(static_cast<uint64_t>(own.nan))};
  const float largest = block_max<kThreads>(own.largest);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (sums[i] > 0) atomicAdd(to.counts + i, static_cast<unsigned long long>(sums[i]));
  if (largest > 0)
    atomicMax(to.largest,
              static_cast<unsigned long long>(__double_as_longlong(static_cast<double>(largest))));
}

}  // namespace pleat::kernels::cuda
