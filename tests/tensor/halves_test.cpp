#include "tensor/halves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace pleat::tensor {
namespace {

float as_float(uint16_t high) { return std::bit_cast<float>(static_cast<uint32_t>(high) << 16); }

TEST(Halves, TogetherAreTheFloatBitForBit) {
  // Every sixteenth of the low bits, below and above every tie, under highs of all exponents and signs.
  for (uint32_t high = 0; high < 0x10000; high += 37)
    for (uint32_t low : {0u, 1u, 0x7FFEu, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFEu, 0xFFFFu, 0x1234u, 0xABCDu}) {
      const uint32_t bits = (high << 16) | low;
      const float x = std::bit_cast<float>(bits);
      if (std::isnan(x)) continue;
      const Halves halves = split(x);
      EXPECT_EQ(std::bit_cast<uint32_t>(join(halves.high, halves.rest)), bits) << std::hex << bits;
    }
}

TEST(Halves, TheHighHalfIsTheNearestBf16) {
  for (float x : {1.0f, 1.00390625f, 1.005f, -3.14159f, 1e-40f, 6.1e4f, -0.0f, 0x1.01p0f, 0x1.03p0f}) {
    const Halves halves = split(x);
    const float near = as_float(halves.high), below = as_float(static_cast<uint16_t>(halves.high - 1)),
                above = as_float(static_cast<uint16_t>(halves.high + 1));
    EXPECT_LE(std::abs(near - x), std::abs(above - x)) << x;
    if (near != 0) {
      EXPECT_LE(std::abs(near - x), std::abs(below - x)) << x;
    }
  }
  EXPECT_EQ(as_float(split(0x1.01p0f).high), 0x1.02p0f);    // ties away from zero
  EXPECT_EQ(as_float(split(-0x1.01p0f).high), -0x1.02p0f);  // ties away from zero
  EXPECT_EQ(split(std::numeric_limits<float>::infinity()).rest, 0);
}

TEST(Halves, ANanStaysOne) {
  for (uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u, 0x7FC00000u, 0xFF808000u}) {
    const Halves halves = split(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(as_float(halves.high))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(join(halves.high, halves.rest))) << std::hex << bits;
  }
}

}  // namespace
}  // namespace pleat::tensor
