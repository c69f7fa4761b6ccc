// Normal numbers: near the true functions, normally distributed, and the same bits in every build.
#include "base/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numbers>
#include <utility>

#include "base/rng.h"

namespace pleat::base {
namespace {

TEST(Normal, LogarithmAndCosineAreWithinTwoUnitsInTheLastPlace) {
  constexpr double kUnit = 0x1.0p-52;
  const RandomStream random(5, RandomUse::Test, 0, 0);
  const auto check = [&](double x, double turns) {
    const long double log = std::log(static_cast<long double>(x));
    EXPECT_LE(std::abs(static_cast<double>(exact_log(x) - log)),
              2 * kUnit * std::abs(static_cast<double>(log)))
        << x;
    const long double cosine =
        std::cos(2 * std::numbers::pi_v<long double> * static_cast<long double>(turns));
    EXPECT_LE(std::abs(static_cast<double>(exact_cos_turns(turns) - cosine)), kUnit) << turns;
  };
  for (uint64_t i = 0; i < 20000; ++i) check(1 - random.uniform(2 * i), random.uniform(2 * i + 1));
  for (const double edge : {0x1.0p-53, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1 - 0x1.0p-53})
    check(edge, edge);
  EXPECT_EQ(exact_log(1.0), 0.0);
  EXPECT_EQ(exact_cos_turns(0.0), 1.0);
}

TEST(Normal, MomentsAreThoseOfTheNormalDistribution) {
  const RandomStream random(11, RandomUse::Test, 0, 0);
  constexpr int kDraws = 200000;
  double sum = 0, square = 0, fourth = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = random.normal(i);
    sum += x, square += x * x, fourth += x * x * x * x;
  }
  // Five standard errors of each mean.
  EXPECT_NEAR(sum / kDraws, 0, 5 / std::sqrt(double(kDraws)));
  EXPECT_NEAR(square / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(fourth / kDraws, 3, 5 * std::sqrt(96.0 / kDraws));
}

// Other bits here mean that no earlier run starts from the same weights any more.
TEST(Normal, BitsAreTheSameInEveryBuild) {
  const RandomStream random(1234, RandomUse::Init, 0, 0);
  const std::pair<uint64_t, double> kNumbers[] = {
      {0ull, 0x1.748656d23558p-1},
      {1ull, -0x1.a188f70fa0c52p-2},
      {2ull, 0x1.9342c7186e428p-2},
      {1000ull, 0x1.b0bbb9114cce4p-2},
      {1099511627776ull, -0x1.1a25b3b99d733p-3},
  };
  for (const auto& [index, number] : kNumbers) EXPECT_EQ(random.normal(index), number) << index;
}

}  // namespace
}  // namespace pleat::base
