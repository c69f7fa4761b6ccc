#include "tensor/few_bits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pleat::tensor {
namespace {

// The nearest value by search, of two as near the one whose code is even.
template <class Format>
uint32_t searched(double x) {
  const double size = std::min(std::abs(x), Format::largest());
  uint32_t best = 0;
  for (uint32_t c = 1; c <= Format::kLargest; ++c) {
    const double apart = std::abs(Format::value(c) - size), least = std::abs(Format::value(best) - size);
    if (apart < least || (apart == least && c % 2 == 0)) best = c;
  }
  return best | (std::signbit(x) ? Format::kSign : 0);
}

template <class Format>
class FewBitsOf : public ::testing::Test {};
using Formats = ::testing::Types<E4M3, E5M2, E2M1>;
TYPED_TEST_SUITE(FewBitsOf, Formats);

TYPED_TEST(FewBitsOf, EveryValueIsItsOwnCode) {
  for (uint32_t c = 0; c <= TypeParam::kLargest; ++c)
    for (const uint32_t sign : {0u, TypeParam::kSign}) {
      EXPECT_EQ(TypeParam::code(TypeParam::value(c | sign)), c | sign);
      EXPECT_TRUE(c == 0 || TypeParam::value(c) > TypeParam::value(c - 1));
    }
}

TYPED_TEST(FewBitsOf, RoundsToTheNearestAndTiesToEven) {
  for (uint32_t c = 0; c < TypeParam::kLargest; ++c) {
    const double below = TypeParam::value(c), above = TypeParam::value(c + 1), tie = (below + above) / 2;
    for (const double x : {tie, std::nextafter(tie, 0.0), std::nextafter(tie, above),
                           below + 0.3 * (above - below), below + 0.8 * (above - below)})
      for (const double signed_x : {x, -x})
        EXPECT_EQ(TypeParam::code(signed_x), searched<TypeParam>(signed_x)) << x;
  }
}

TYPED_TEST(FewBitsOf, SaturatesAndFlushes) {
  for (const double x : {1e300, TypeParam::largest() * 1.01, 5e-324, 1e-300, TypeParam::value(1) / 2, 0.0,
                         -0.0, -TypeParam::value(1) * 0.51})
    EXPECT_EQ(TypeParam::code(x), searched<TypeParam>(x)) << x;
}

TEST(FewBits, WhatIsNotFiniteIsNaN) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(E4M3::code(infinity), 0x7Fu);
  EXPECT_EQ(E4M3::code(-infinity), 0xFFu);
  EXPECT_TRUE(std::isnan(E4M3::value(0x7F)) && std::isnan(E4M3::value(0xFF)));
  EXPECT_TRUE(std::isnan(E5M2::value(E5M2::code(std::nan("")))));
  EXPECT_EQ(E5M2::value(0x7C), infinity);
}

// Sign, exponent and fraction read as the OCP specifications say, in long form.
double spelled(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const auto exponent = static_cast<int>(code >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double fraction = std::ldexp(static_cast<double>(code & ((1u << mantissa_bits) - 1)), -mantissa_bits);
  const double size =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return code >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
}

TEST(FewBits, AllCodesOfE4M3) {
  for (uint32_t c = 0; c < 256; ++c) {
    if ((c & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(E4M3::value(c))) << c;
      continue;
    }
    EXPECT_EQ(E4M3::value(c), spelled(c, 4, 3, 7)) << c;
    EXPECT_EQ(std::signbit(E4M3::value(c)), c >= 128) << c;
    EXPECT_EQ(E4M3::code(E4M3::value(c)), c);
  }
}

TEST(FewBits, AllCodesOfE5M2) {
  for (uint32_t c = 0; c < 256; ++c) {
    const double v = E5M2::value(c);
    if ((c & 0x7C) == 0x7C) {
      // No fraction: infinity, of which coding makes NaN; else NaN.
      EXPECT_EQ(std::isinf(v), (c & 3) == 0) << c;
      EXPECT_EQ(std::isnan(v), (c & 3) != 0) << c;
      EXPECT_TRUE(std::isnan(E5M2::value(E5M2::code(v)))) << c;
      continue;
    }
    EXPECT_EQ(v, spelled(c, 5, 2, 15)) << c;
    EXPECT_EQ(std::signbit(v), c >= 128) << c;
    EXPECT_EQ(E5M2::code(v), c);
  }
}

TEST(FewBits, AllCodesOfE8M0) {
  for (uint32_t c = 0; c < 255; ++c) EXPECT_EQ(E8M0::value(c), std::pow(2.0, static_cast<int>(c) - 127)) << c;
  EXPECT_TRUE(std::isnan(E8M0::value(255)));
}

// Values as the OCP specifications list them.
TEST(FewBits, AreThoseOfTheSpecifications) {
  EXPECT_EQ(E4M3::value(0x7E), 448);
  EXPECT_EQ(E4M3::value(0x08), 0x1p-6);
  EXPECT_EQ(E4M3::value(0x07), 0x1p-6 * 0.875);
  EXPECT_EQ(E4M3::value(0x01), 0x1p-9);
  EXPECT_EQ(E5M2::value(0x7B), 57344);
  EXPECT_EQ(E5M2::value(0x04), 0x1p-14);
  EXPECT_EQ(E5M2::value(0x01), 0x1p-16);
  const double e2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t c = 0; c < 8; ++c) EXPECT_EQ(E2M1::value(c), e2m1[c]);
  EXPECT_EQ(E8M0::value(0), 0x1p-127);
  EXPECT_EQ(E8M0::value(127), 1);
  EXPECT_EQ(E8M0::value(254), 0x1p127);
  EXPECT_TRUE(std::isnan(E8M0::value(255)));
}

TEST(FewBits, TheScaleIsTheLeastThatDoesNotSaturate) {
  for (const double x : {448.0, 448.0000001, 1.0, 0.875, 0.8751, 3e-5, 7e30, 1e-30}) {
    const double scale = std::ldexp(1.0, scale_exponent<E4M3>(x));
    EXPECT_LE(x / scale, 448) << x;
    EXPECT_GT(x / (scale / 2), 448) << x;
  }
  EXPECT_EQ(scale_exponent<E4M3>(0), 0);
  EXPECT_EQ(scale_exponent<E4M3>(std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(scale_exponent<E4M3>(1e-45), -126);  // as small as a float's scale can be
}

}  // namespace
}  // namespace pleat::tensor
