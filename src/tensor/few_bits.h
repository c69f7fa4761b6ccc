// Floating-point formats of eight and four bits, exactly: every code has one value, and a number is rounded to the nearest
// code, ties to the code that is even. What is larger than the largest value becomes that value (it saturates); what is not
// finite becomes NaN where the format has one, so that a step that went wrong shows.
//
//   E4M3  bias 7, largest 448, smallest 2^-9, one NaN code for each sign, no infinity (OCP FP8, "fn")
//   E5M2  bias 15, largest 57344, smallest 2^-16, infinities and NaN (OCP FP8)
//   E2M1  bias 1: 0 0.5 1 1.5 2 3 4 6 and their negatives, nothing else (OCP MX, NVFP4)
//   E8M0  2^(code - 127), 255 is NaN: a scale (OCP MX)
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace pleat::tensor {

template <int kExponentBits, int kMantissaBits, int kBias_, uint32_t kLargestCode, int64_t kNanCode_>
struct FewBits {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kMantissa = kMantissaBits, kBias = kBias_;
  static constexpr uint32_t kSign = 1u << (kBits - 1), kLargest = kLargestCode;
  static constexpr bool kHasNan = kNanCode_ >= 0;
  static constexpr uint32_t kNan = kHasNan ? static_cast<uint32_t>(kNanCode_) : 0;

  // 2^exponent of a double's normal range.
  static constexpr double power(int exponent) {
    return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  }

  static constexpr double value(uint32_t code) {
    const uint32_t magnitude = code & (kSign - 1);
    if (magnitude > kLargest) {
      if (kHasNan && magnitude >= kNan) return std::bit_cast<double>(uint64_t{0x7FF8} << 48);
      return std::bit_cast<double>((uint64_t{code & kSign ? 0xFFFu : 0x7FFu}) << 52);  // E5M2's infinity
    }
    const int exponent = static_cast<int>(magnitude >> kMantissa);
    const uint32_t fraction = magnitude & ((1u << kMantissa) - 1);
    const double size =
        exponent == 0 ? static_cast<double>(fraction) * power(1 - kBias - kMantissa)
                      : static_cast<double>(fraction | 1u << kMantissa) * power(exponent - kBias - kMantissa);
    return code & kSign ? -size : size;
  }
  static constexpr double largest() { return value(kLargest); }

  static constexpr uint32_t code(double x) {
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    const uint32_t sign = bits >> 63 ? kSign : 0;
    const uint64_t size = bits & (~uint64_t{0} >> 1);
    if (size >= uint64_t{0x7FF} << 52) return sign | (kHasNan ? kNan : kLargest);
    // The last place of the code this number falls to; below the smallest normal one it stays the same.
    const int exponent = static_cast<int>(size >> 52) - 1023;
    const int place = (exponent > 1 - kBias ? exponent : 1 - kBias) - kMantissa;
    if (exponent < place - 1) return sign;  // less than half of the smallest
    // size = significand 2^(exponent - 52); whole units of 2^place and what is left over.
    const uint64_t significand = (size & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
    const int drop = 52 - (exponent - place);  // 1 to 53
    const uint64_t units = drop > 52 ? 0 : significand >> drop, rest = significand - (units << drop % 64);
    const uint64_t left = drop > 52 ? significand : rest, half = uint64_t{1} << (drop - 1);
    const uint64_t rounded = units + (left > half || (left == half && (units & 1)) ? 1 : 0);
    // Units of 2^place from 2^kMantissa on are normal; a carry into the next power is the next code.
    const auto scaled =
        static_cast<int64_t>(rounded) + (static_cast<int64_t>(place + kMantissa + kBias - 1) << kMantissa);
    const auto magnitude = static_cast<uint32_t>(scaled > kLargest ? kLargest : scaled);
    return sign | magnitude;
  }
};

using E4M3 = FewBits<4, 3, 7, 0x7E, 0x7F>;
using E5M2 = FewBits<5, 2, 15, 0x7B, 0x7D>;
using E2M1 = FewBits<2, 1, 1, 0x7, -1>;

struct E8M0 {
  static constexpr uint32_t kNan = 255;
  static double value(uint32_t code) {
    return code == kNan ? std::bit_cast<double>(uint64_t{0x7FF8} << 48)
                        : std::ldexp(1.0, static_cast<int>(code) - 127);
  }
};

// The least e for which x / 2^e does not saturate `Format`, as an exponent a float scale can have; 0 for x = 0, and where x
// is not finite.
template <class Format>
inline int scale_exponent(double x) {
  if (!(x > 0) || !std::isfinite(x)) return 0;
  int of_x = 0, of_largest = 0;
  const double part = std::frexp(x, &of_x), largest = std::frexp(Format::largest(), &of_largest);
  const int e = of_x - of_largest + (part > largest ? 1 : 0);
  return e < -126 ? -126 : e > 127 ? 127 : e;
}

}  // namespace pleat::tensor
