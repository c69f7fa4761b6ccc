#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"
#include "kernels/math/sqrt.h"

namespace pleat::kernels {
namespace {

constexpr float kInfF = std::numeric_limits<float>::infinity();
constexpr double kInf = std::numeric_limits<double>::infinity();

// |got - want| in units in the last place of want.
template <class T>
double ulps(T got, long double want) {
  const T rounded = static_cast<T>(want);
  const T next = std::nextafter(rounded, T(0));
  return static_cast<double>(std::abs(static_cast<long double>(got) - want) /
                             std::abs(static_cast<long double>(rounded) - next));
}

TEST(FastExp, FloatIsWithinTwoUlp) {
  double worst = 0;
  // Every 997th float: all exponents and signs, 4.3 million arguments.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 997) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(x > -87.33f && x < 88.72f)) continue;
    worst = std::max(worst, ulps(fast_exp(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.25);
}

TEST(FastExp, DoubleIsWithinTwoUlp) {
  double worst = 0;
  for (int i = 0; i < 300000; ++i) {
    const double x = -708.3 + 1418.0 * i / 300000;
    worst = std::max(worst, ulps(fast_exp(x), std::exp(static_cast<long double>(x))));
  }
  EXPECT_LE(worst, 2.0);
}

TEST(FastExp, Ends) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0), 1.0);
  for (float x : {-kInfF, -1e30f, -1000.0f, -104.0f, -87.4f, std::numeric_limits<float>::lowest()}) {
    EXPECT_EQ(fast_exp(x), 0.0f) << x;
    EXPECT_FALSE(std::signbit(fast_exp(x))) << x;
  }
  for (double x : {-kInf, -1e300, -746.0, -708.4}) EXPECT_EQ(fast_exp(x), 0.0) << x;
  for (float x : {kInfF, 1e30f, 1000.0f, 88.73f}) EXPECT_EQ(fast_exp(x), kInfF) << x;
  for (double x : {kInf, 1e300, 709.79}) EXPECT_EQ(fast_exp(x), kInf) << x;
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(-std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(fast_exp(std::numeric_limits<double>::quiet_NaN())));
  EXPECT_NEAR(fast_exp(88.72f) / std::exp(static_cast<double>(88.72f)), 1.0, 2e-7);
  EXPECT_NEAR(fast_exp(-87.33f) / std::exp(static_cast<double>(-87.33f)), 1.0, 2e-7);
}

// A vector body and a call for one number alone must agree, or a value's bits would depend on its place in a
// row.
TEST(FastExp, SameBitsAloneAndInALoop) {
  std::vector<float> x(1003), y(x.size());
  const base::RandomStream stream(1, base::RandomUse::Test, 0, 0);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(20 * stream.normal(i));
  for (size_t i = 0; i < x.size(); ++i) y[i] = fast_exp(x[i]);
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float alone = x[i];
    EXPECT_EQ(std::bit_cast<uint32_t>(fast_exp(alone)), std::bit_cast<uint32_t>(y[i])) << x[i];
  }
}

TEST(FastSigmoid, ValuesAndEnds) {
  EXPECT_EQ(fast_sigmoid(0.0f), 0.5f);
  EXPECT_EQ(fast_sigmoid(-kInfF), 0.0f);
  EXPECT_EQ(fast_sigmoid(kInfF), 1.0f);
  EXPECT_EQ(fast_sigmoid(-1e4), 0.0);
  for (double x = -30; x < 30; x += 0.37) {
    EXPECT_NEAR(fast_sigmoid(x) * (1 + std::exp(-x)), 1.0, 1e-15);
    EXPECT_NEAR(
        fast_sigmoid(static_cast<float>(x)) * (1 + std::exp(-static_cast<double>(static_cast<float>(x)))),
        1.0, 3e-7);
  }
}

template <class T>
void check_sums() {
  const base::RandomStream stream(2, base::RandomUse::Test, 0, 0);
  for (int64_t n : {0, 1, 7, 8, 9, 15, 16, 17, 31, 100, 1000}) {
    std::vector<T> a, b, c;
    for (int64_t i = 0; i < n; ++i) {
      a.push_back(static_cast<T>(stream.normal(static_cast<uint64_t>(3 * i))));
      b.push_back(static_cast<T>(stream.normal(static_cast<uint64_t>(3 * i + 1))));
      c.push_back(static_cast<T>(stream.normal(static_cast<uint64_t>(3 * i + 2))));
    }
    long double sum = 0, squares = 0, dot = 0, dot3 = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const long double x = a[i], y = b[i], z = c[i];
      sum += x, squares += x * x, dot += x * y, dot3 += x * y * z;
    }
    EXPECT_NEAR(sum_of(a.data(), n), static_cast<double>(sum), 1e-12);
    EXPECT_NEAR(sum_of_squares(a.data(), n), static_cast<double>(squares), 1e-11);
    EXPECT_NEAR(dot_of(a.data(), b.data(), n), static_cast<double>(dot), 1e-11);
    EXPECT_NEAR(dot3_of(a.data(), b.data(), c.data(), n), static_cast<double>(dot3), 1e-11);
    std::vector<T> squared(a.size()), root(a.size());
    for (size_t i = 0; i < a.size(); ++i) squared[i] = a[i] * a[i];
    square_roots(squared.data(), n, root.data());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(root[i], std::sqrt(squared[i]));
  }
}
TEST(Reduce, AgreesWithWideSumsFloat) { check_sums<float>(); }
TEST(Reduce, AgreesWithWideSumsDouble) { check_sums<double>(); }

}  // namespace
}  // namespace pleat::kernels
