// exp and sigmoid that the compiler can put into vector loops, in float and double.
//
// std::exp is a library call and keeps a loop scalar. These are branch-free (selects only), use explicit
// fused multiply-adds so that a vector body and its scalar remainder give the same bits, and need no
// fast-math.
//
// Contract of fast_exp: within 1.2 ulp of the true value (float: all arguments checked); NaN gives NaN,
// overflow +inf, -inf and everything whose result is below the smallest normal number gives +0 (no subnormal
// results: they cost microcode assists in softmax tails and carry no weight).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace pleat::kernels {

// a * b + c, rounded once where the target has the instruction; without it std::fma would be a library call.
template <class T>
inline T multiply_add(T a, T b, T c) {
#ifdef __FMA__
  return std::fma(a, b, c);
#else
  return a * b + c;
#endif
}

inline float fast_exp(float x) {
  // x = n ln2 + r, |r| <= ln2/2. Adding 1.5 * 2^23 leaves round(x / ln2) in the low bits. ln2 is split so
  // that n * kLn2High is exact.
  constexpr float kShift = 0x1.8p23f, kInverseLn2 = 0x1.715476p0f;
  constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 1.4286068203094172e-6f;
  const float shifted = multiply_add(x, kInverseLn2, kShift);
  const float n = shifted - kShift;
  float r = multiply_add(n, -kLn2High, x);
  r = multiply_add(n, -kLn2Low, r);
  // exp(r) = 1 + r + r^2 q(r); q interpolates at Chebyshev points of |r| <= 1.0005 ln2/2 (error 0.13 ulp).
  float q = 0.0013926213466332444f;
  q = multiply_add(q, r, 0.008363202971575855f);
  q = multiply_add(q, r, 0.04166655443768594f);
  q = multiply_add(q, r, 0.16666576845993977f);
  q = multiply_add(q, r, 0.5f);
  const float p = multiply_add(r * r, q, r) + 1.0f;
  // p * 2^n by adding n to the exponent: right whenever the result is normal, and the selects cover the rest.
  const uint32_t bits = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23);
  float y = std::bit_cast<float>(bits);
  y = x > 0x1.62e42ep6f ? std::numeric_limits<float>::infinity() : y;
  y = x < -0x1.5d589ep6f ? 0.0f : y;
  return x == x ? y : x;
}

inline double fast_exp(double x) {
  constexpr double kShift = 0x1.8p52, kInverseLn2 = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b39p-40;
  const double shifted = multiply_add(x, kInverseLn2, kShift);
  const double n = shifted - kShift;
  double r = multiply_add(n, -kLn2High, x);
  r = multiply_add(n, -kLn2Low, r);
  // The exponential series to r^13: the rest is below 2^-57.
  double q = 1.0 / 6227020800.0;
  q = multiply_add(q, r, 1.0 / 479001600.0);
  q = multiply_add(q, r, 1.0 / 39916800.0);
  q = multiply_add(q, r, 1.0 / 3628800.0);
  q = multiply_add(q, r, 1.0 / 362880.0);
  q = multiply_add(q, r, 1.0 / 40320.0);
  q = multiply_add(q, r, 1.0 / 5040.0);
  q = multiply_add(q, r, 1.0 / 720.0);
  q = multiply_add(q, r, 1.0 / 120.0);
  q = multiply_add(q, r, 1.0 / 24.0);
  q = multiply_add(q, r, 1.0 / 6.0);
  q = multiply_add(q, r, 0.5);
  const double p = multiply_add(r * r, q, r) + 1.0;
  const uint64_t bits = std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(shifted) << 52);
  double y = std::bit_cast<double>(bits);
  y = x > 0x1.62e42fefa39efp9 ? std::numeric_limits<double>::infinity() : y;
  y = x < -0x1.6232bdd7abcd2p9 ? 0.0 : y;
  return x == x ? y : x;
}

// 1 / (1 + exp(-x)); 0 at -inf, 1 at +inf, NaN at NaN.
template <class T>
inline T fast_sigmoid(T x) {
  return T(1) / (T(1) + fast_exp(-x));
}

}  // namespace pleat::kernels
