// Blocks of eight and four bits: vectors worked out by hand, bounds for any numbers, and rounding that is right in the mean.
#include "tensor/few_blocks_support.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tensor/recipe.h"

namespace pleat::tensor {
namespace {

using namespace reference;

std::vector<double> drawn(size_t count, uint32_t step, double spread) {
  const base::RandomStream numbers(11, base::RandomUse::Test, step, 0);
  std::vector<double> x;
  for (size_t i = 0; i < count; ++i)
    x.push_back(numbers.normal(i) * std::exp2(spread * (numbers.uniform(i + count) - 0.5)));
  return x;
}

TEST(Mxfp8, VectorsByHand) {
  // 3.5 / 2^-7 is 448, the largest code; one more place and the scale doubles.
  std::vector<double> x(32, 0.0);
  x[0] = 3.5, x[1] = -1.0, x[2] = 0x1p-16, x[3] = 0x1p-17, x[4] = 3 * 0x1p-17;
  Mxfp8Block b = mxfp8(x);
  EXPECT_EQ(b.scale, 127u - 7);
  EXPECT_EQ(b.codes[0], 0x7Eu);
  EXPECT_EQ(b.codes[1], 0x80u | 0x70u);  // -128 = -2^7: exponent field 14
  EXPECT_EQ(b.codes[2], 0x01u);          // 2^-9, the smallest
  EXPECT_EQ(b.codes[3], 0x00u);          // half of it: to the even code, zero
  EXPECT_EQ(b.codes[4], 0x02u);          // one and a half: to the even code
  EXPECT_EQ(b.codes[5], 0x00u);
  x[0] = std::nextafter(3.5, 4.0);
  b = mxfp8(x);
  EXPECT_EQ(b.scale, 127u - 6);
  EXPECT_EQ(b.codes[0], 0x76u);  // 224 = 1.75 x 2^7
  EXPECT_EQ(b.codes[2], 0x00u);  // half of the smallest now
  EXPECT_EQ(mxfp8(std::vector<double>(32, 0.0)).scale, 127u);
  EXPECT_EQ(mxfp8(std::vector<double>(32, 0x1p-149)).scale, 0u);
  EXPECT_EQ(mxfp8(std::vector<double>(32, 0x1.fffffep127)).scale, 127u + 120);
}

TEST(Mxfp8, NumbersAreOffByASixteenthOrByThePlaceOfTheScale) {
  for (uint32_t round = 0; round < 200; ++round) {
    const std::vector<double> x = drawn(static_cast<size_t>(recipe_of(RecipeId::Mxfp8).block), round, 20);
    const Mxfp8Block b = mxfp8(x);
    const double scale = E8M0::value(b.scale), largest = largest_of(x);
    EXPECT_LE(largest, E4M3::largest() * scale);
    EXPECT_GT(largest, E4M3::largest() * scale / 2);
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_LE(std::abs(b.number(i) - x[i]), std::max(std::abs(x[i]) / 16, scale * 0x1p-10)) << x[i];
  }
}

TEST(Nvfp4, VectorsByHand) {
  std::vector<double> x(16, 0.0);
  x[0] = 6 * 448, x[1] = -448, x[2] = 448 * 2.5, x[3] = 448 * 0.25, x[4] = 448 * 5;
  const float whole = nvfp4_tensor_scale(largest_of(x));
  EXPECT_EQ(whole, 1.0F);
  Nvfp4Block b = nvfp4(x, whole);
  EXPECT_EQ(b.scale, 0x7Eu);
  const uint32_t codes[] = {7, 8 | 2, 4, 0, 6};  // 2.5 ties to 2, 0.25 to 0, 5 to 4: even codes
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(b.codes[i], codes[i]) << i;
  for (double& v : x) v /= 2688;
  EXPECT_EQ(nvfp4(x, whole).scale, 0x23u);                           // of 1/6: 1.375 x 2^-3
  EXPECT_EQ(nvfp4(std::vector<double>(16, 1e-9), whole).scale, 1u);  // never zero where a number is not
  EXPECT_EQ(nvfp4(std::vector<double>(16, 0.0), whole).codes[3], 0u);
  EXPECT_EQ(nvfp4_tensor_scale(0), 1.0F);
}

// The scale is off by a sixteenth, so the largest number may be too large by that: 6 x 17/16. Codes lie a third of
// themselves apart at most, so what does not saturate is off by a fifth (2.5 becomes 2) or by a quarter of the scale.
TEST(Nvfp4, NumbersAreOffByAFifthOrByAQuarterOfTheScale) {
  for (uint32_t round = 0; round < 200; ++round) {
    std::vector<double> x = drawn(16 * 8, round, 6);
    const float whole = nvfp4_tensor_scale(largest_of(x));
    for (size_t at = 0; at < x.size(); at += 16) {
      const std::span<const double> block(x.data() + at, 16);
      const Nvfp4Block b = nvfp4(block, whole);
      const double scale = E4M3::value(b.scale) * static_cast<double>(whole);
      for (size_t i = 0; i < 16; ++i)
        EXPECT_LE(std::abs(b.number(i, whole) - block[i]),
                  std::max(std::abs(block[i]) / 5, scale / 4) * (1 + 1e-12))
            << block[i] << " with scale " << scale;
    }
  }
}

// The mean of many draws is the number itself. Each draw is a coin between two codes, so its variance is known, and the
// mean over all numbers is z standard deviations off.
template <class Format>
double z_of(uint32_t stream) {
  const base::RandomStream draws(5, base::RandomUse::Test, stream, 1),
      numbers(5, base::RandomUse::Test, stream, 2);
  double sum = 0, variance = 0;
  for (uint64_t i = 0; i < 1'000'000; ++i) {
    const double x = (2 * numbers.uniform(i) - 1) * Format::largest() * (i % 3 == 0 ? 1 : 0.05);
    const uint32_t code = stochastic_code<Format>(x, draws.uniform(i));
    const double got = Format::value(code), apart = std::abs(got - x);
    if (apart == 0) continue;
    // The other neighbour lies on the other side of x.
    const uint32_t size = code & (Format::kSign - 1);
    const bool up = std::abs(got) > std::abs(x);
    const double other = std::abs(std::abs(Format::value(up ? size - 1 : size + 1)) - std::abs(x));
    const double step = std::abs(x) + Format::value(1);  // so that small numbers count as much as large ones
    sum += (got - x) / step;
    variance += apart * other / (step * step);
  }
  return sum / std::sqrt(variance);
}

TEST(StochasticRounding, IsRightInTheMean) {
  EXPECT_LT(std::abs(z_of<E2M1>(0)), 4);
  EXPECT_LT(std::abs(z_of<E4M3>(1)), 4);
}

TEST(StochasticRounding, KeepsCodesAndSaturates) {
  for (const double draw : {0.0, 0.5, 0.999999}) {
    for (uint32_t c = 0; c <= E2M1::kLargest; ++c)
      for (const uint32_t sign : {0u, E2M1::kSign})
        EXPECT_EQ(stochastic_code<E2M1>(E2M1::value(c | sign), draw), c | sign);
    EXPECT_EQ(stochastic_code<E2M1>(100, draw), 7u);
    EXPECT_EQ(stochastic_code<E2M1>(-100, draw), 15u);
  }
  EXPECT_EQ(stochastic_code<E2M1>(2.5, 0.49), 5u);
  EXPECT_EQ(stochastic_code<E2M1>(2.5, 0.5), 4u);
}

}  // namespace
}  // namespace pleat::tensor
