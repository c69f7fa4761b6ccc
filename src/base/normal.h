// Normal variates that are the same bits on every processor: logarithm, sine and cosine as one own sequence
// of exact operations (fused multiply-add, division, square root), because the last place of libm's differs
// between the C library and CUDA.
//
// Every product that feeds a sum is an explicit fused multiply-add, so no compiler has a choice to contract.
// Functions are constexpr templates: CUDA code may call those without a mark of the vendor's.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace pleat::base {

// The natural logarithm of a normal x in (0, 1], to about one unit in the last place.
template <class T = double>
constexpr T exact_log(T x) {
  // x = m 2^e with m in [sqrt(1/2), sqrt(2)): the series of 2 atanh((m - 1) / (m + 1)) is short there.
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  T m = std::bit_cast<T>((bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > T(1.4142135623730951)) m *= T(0.5), ++e;
  const T s = (m - 1) / (m + 1), z = s * s;
  T sum = T(1) / 23;
  for (int k = 21; k >= 3; k -= 2) sum = std::fma(sum, z, T(1) / k);
  // ln m = 2 s (1 + z sum); ln 2 in two parts, so that e ln 2 brings no error of its own.
  const T log_m = std::fma(2 * s * z, sum, 2 * s);
  return std::fma(T(e), T(0x1.62e42fefa39efp-1), std::fma(T(e), T(0x1.abc9e3b39803fp-56), log_m));
}

// cos(2 pi v) for v in [0, 1), to about one unit in the last place.
template <class T = double>
constexpr T exact_cos_turns(T v) {
  const int quarter = static_cast<int>(4 * v);
  T f = std::fma(T(4), v, T(-quarter));  // exact; the angle is (quarter + f) quarter turns
  bool sine = (quarter & 1) != 0;
  const bool negative = quarter == 1 || quarter == 2;
  if (f > T(0.5)) f = 1 - f, sine = !sine;  // exact; sine and cosine change places
  const T t = f * T(1.5707963267948966), z = t * t;
  // Taylor series; t is at most pi / 4.
  T sum = 0, last = 0;
  if (sine) {
    sum = T(1) / T(121645100408832000.0);  // 19!
    constexpr T kFactors[] = {T(-355687428096000.0), T(1307674368000.0), T(-6227020800.0), T(39916800.0),
                              T(-362880.0),          T(5040.0),          T(-120.0),        T(6.0)};
    sum = -sum;
    for (const T factor : kFactors) sum = std::fma(sum, z, -(T(1) / factor));
    last = std::fma(t * z, sum, t);
  } else {
    sum = T(1) / T(-6402373705728000.0);  // 18!
    constexpr T kFactors[] = {T(20922789888000.0), T(-87178291200.0), T(479001600.0), T(-3628800.0),
                              T(40320.0),          T(-720.0),         T(24.0),        T(-2.0)};
    for (const T factor : kFactors) sum = std::fma(sum, z, T(1) / factor);
    last = std::fma(z, sum, T(1));
  }
  return negative ? -last : last;
}

// A standard normal number from two uniform ones in [0, 1), by Box and Muller.
template <class T = double>
constexpr T exact_normal(T u, T v) {
  // 1 - u is exact and positive. Adding zero keeps the product from joining a sum of the caller's.
  return std::fma(std::sqrt(-2 * exact_log(1 - u)), exact_cos_turns(v), T(0));
}

}  // namespace pleat::base
