// Blocks of codes (tensor/block_codes.h) on the GPU, with the bits of the CPU: a warp holds a block, a thread eight
// numbers of it.
//
// The CPU divides in double to find a number's code. Here the logarithm of an approximate quotient gives it, and where that
// comes near the way between two codes, one comparison in double decides: x / S > h where x > h S, for h has 25 bits and S
// 24, so that the product is exact, and a quotient that is not h is further from it than a double rounds.
#pragma once

#include <cuda_runtime.h>

#include "tensor/block_codes.h"

namespace pleat::kernels::cuda {

constexpr int kRun = 8;  // elements of a thread
static_assert(32 * kRun == tensor::kCodeBlock);

inline __device__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline __device__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
inline __device__ float reciprocal_root_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// NaN where one is.
inline __device__ float larger(float x, float y) {
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(x), "f"(y));
  return most;
}

__device__ const std::array<float, 256> kSignedPlaces = tensor::SignedCode::places();
__device__ const std::array<float, 256> kRootPlaces = tensor::RootCode::places();

// How the logarithm of a quotient becomes a code: kBase + code + (part of the way to the next) is a float whose bits hold the
// code from bit kShift on.
template <class Code>
struct CodeScale;
template <>
struct CodeScale<tensor::SignedCode> {
  // Half way between two places lies this much of a code below half way between their logarithms, and half a code:
  // -8 log2((1 + 2^(-1/8)) / 2).
  static constexpr double kHalfWay = 0.4891729613112109;
  static constexpr int kPerOctave = 8, kShift = 16;
  static constexpr float kBase = 128;
  __device__ static const float* places() { return kSignedPlaces.data(); }
};
template <>
struct CodeScale<tensor::RootCode> {
  static constexpr double kHalfWay = 0.49458521106164266;  // -16 log2((1 + 2^(-1/16)) / 2)
  static constexpr int kPerOctave = 16, kShift = 15;
  static constexpr float kBase = 256;
  __device__ static const float* places() { return kRootPlaces.data(); }
};

// Of a code: nearer than this to where the next begins, a comparison decides. The approximations are off by less than 2^-13:
// 16 log2(q), down to q = 2^-16, by 16 x 16 x 2^-22 and what q is off by, 16 x 2^-22; twice half a last place of 256.
constexpr double kNear = 0x1p-12;

// The code of x, the size of a number, beside a guess that is at most one off, or below 1 for a code of 0 or 1.
template <class Code>
__device__ int exact_code(float x, float scale, float guess, const float* places) {
  if (x == 0) return 0;
  int code = guess >= 1 ? min(static_cast<int>(guess), Code::kTop) : 1;
  const auto above = [&](int c) {  // half way from place c - 1 to place c
    const double half = 0.5 * (static_cast<double>(places[c - 1]) + static_cast<double>(places[c]));
    return static_cast<double>(x) > half * static_cast<double>(scale);
  };
  if (code < Code::kTop && above(code + 1))
    ++code;
  else if (!above(code))
    --code;
  return !Code::kSigned && code == 0 ? 1 : code;
}

// The warp's block: eight numbers of each thread, whose values are lost, and the largest size of them, NaN where one is.
// Returns the scale to every thread.
template <class Code>
__device__ float encode(float (&x)[kRun], float most, const float* places, uint32_t (&codes)[2]) {
  using Scale = CodeScale<Code>;
  const float scale = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(most)));
  codes[0] = codes[1] = 0;
  if (scale == 0) return 0;
  if (!(scale < __uint_as_float(0x7F800000u))) return __uint_as_float(0x7FC00000u);
  // To where the reciprocal is a normal float. What a step down flushes has code 0.
  float divisor = scale;
  if (scale < 0x1p-100f || scale > 0x1p125f) {
    const float shift = scale < 1 ? 0x1p100f : 0x1p-64f;
    divisor *= shift;
#pragma unroll
    for (int j = 0; j < kRun; ++j) x[j] *= shift;
  }
  const float reciprocal = reciprocal_approx(divisor);
  constexpr float kAddend = static_cast<float>(Scale::kBase + Code::kTop + Scale::kHalfWay + kNear);
  // Of a fraction: they are 0 where it is within kNear of a whole number, since it was moved up by as much.
  constexpr uint32_t kUnit = 1u << Scale::kShift,
                     kFar = kUnit - static_cast<uint32_t>(2 * kNear * static_cast<double>(kUnit));
  constexpr float kLow = Scale::kBase + 2;
  float place[kRun];
  bool slow = false;
#pragma unroll
  for (int j = 0; j < kRun; ++j) {
    place[j] = __fmaf_rn(log2_approx(fabsf(x[j]) * reciprocal), Scale::kPerOctave, kAddend);
    slow |= !(place[j] >= kLow) | ((__float_as_uint(place[j]) & kFar) == 0);
  }
  if (slow) {
#pragma unroll
    for (int j = 0; j < kRun; ++j)
      if (!(place[j] >= kLow) | ((__float_as_uint(place[j]) & kFar) == 0)) {
        const int code = exact_code<Code>(fabsf(x[j]), divisor, place[j] - Scale::kBase, places);
        place[j] = Scale::kBase + static_cast<float>(code);
        if (code == 0) x[j] = 0;  // without a sign
      }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t bits[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) bits[j] = __float_as_uint(place[4 * k + j]) << (16 - Scale::kShift);
    const auto third_bytes = [](uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x0062); };
    codes[k] = __byte_perm(third_bytes(bits[0], bits[1]), third_bytes(bits[2], bits[3]), 0x5410);
    if (!Code::kSigned) continue;
    const auto fourth_bytes = [&](int j) {
      return __byte_perm(__float_as_uint(x[4 * k + j]), __float_as_uint(x[4 * k + j + 1]), 0x0073);
    };
    codes[k] |= __byte_perm(fourth_bytes(0), fourth_bytes(2), 0x5410) & 0x80808080u;
  }
  return scale;
}

__device__ inline void decode(const uint32_t (&codes)[2], float scale, const float* places,
                              float (&x)[kRun]) {
#pragma unroll
  for (int j = 0; j < kRun; ++j) x[j] = scale * places[codes[j / 4] >> j % 4 * 8 & 255];
}

}  // namespace pleat::kernels::cuda
