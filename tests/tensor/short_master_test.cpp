// Masters of fewer bits: rounding by chance is right on average to the last bit, and halves come together again.
#include "tensor/short_master.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace pleat::tensor {
namespace {

TEST(ShortMaster, ChanceIsRightOnAverage) {
  for (const int drops : {kFloat24Drops, kBf16Drops})
    for (const float x : {1.0f, 1.2345678f, -0.7654321f, 0x1.fffffep0f, 3.0e-41f, -1.0e30f}) {
      // Every random number once: ups and downs weigh as much as the distances.
      double sum = 0;
      const uint32_t all = 1u << drops;
      for (uint32_t random = 0; random < all; ++random) {
        const float kept = without_bits_by_chance(x, drops, random | 0xABC00000u);
        ASSERT_EQ(std::bit_cast<uint32_t>(kept) & (all - 1), 0u);
        sum += double(kept) / double(all);
      }
      EXPECT_NEAR(sum / double(x), 1, 1e-12) << x << " without " << drops;
    }
}

TEST(ShortMaster, WhatIsFiniteStaysSoAndWhatIsNotToo) {
  const float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  for (const int drops : {kFloat24Drops, kBf16Drops})
    for (const uint32_t random : {0u, 0xFFFFu, 0xFFFFFFFFu}) {
      EXPECT_TRUE(std::isfinite(without_bits_by_chance(largest, drops, random)));
      EXPECT_EQ(without_bits_by_chance(-infinity, drops, random), -infinity);
      for (const uint32_t nan : {0x7F800001u, 0xFFC00000u, 0x7FFFFFFFu})
        EXPECT_TRUE(std::isnan(without_bits_by_chance(std::bit_cast<float>(nan), drops, random)));
    }
}

TEST(ShortMaster, HalvesTogetherAreTheFloat24) {
  for (uint32_t bits = 0; bits < 0x7F800000u; bits += 0x13700u)
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const float x = std::bit_cast<float>(bits | sign);
      const ShortHalves halves = split_short(x);
      EXPECT_EQ(std::bit_cast<uint32_t>(join_short(halves.high, halves.rest)), bits | sign);
      EXPECT_EQ(halves.high, split(x).high);
    }
}

TEST(ShortMaster, ARestIsShortenedToTheNearest) {
  for (int rest = -32768; rest <= 32767; ++rest) {
    const int kept = short_rest(static_cast<int16_t>(rest)) * 256;
    EXPECT_LE(std::abs(kept - rest), rest > 127 * 256 + 128 ? 255 : 128) << rest;
  }
}

}  // namespace
}  // namespace pleat::tensor
