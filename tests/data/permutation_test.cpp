#include "data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/data_support.h"

namespace pleat::data {
namespace {

TEST(Permutation, IsABijectionForEverySmallSize) {
  for (int64_t n = 1; n <= 600; ++n) {
    for (const int64_t epoch : {0, 1, 7}) {
      const Permutation permutation(n, 42, epoch);
      std::vector<bool> seen(static_cast<size_t>(n), false);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t to = permutation(i);
        ASSERT_TRUE(to >= 0 && to < n);
        ASSERT_FALSE(seen[static_cast<size_t>(to)]) << "n " << n << " index " << i;
        seen[static_cast<size_t>(to)] = true;
      }
    }
  }
}

TEST(Permutation, IsABijectionAroundPowersOfTwo) {
  for (const int64_t base : {1024, 4096, 16384, 65536, 262144}) {
    for (const int64_t n : {base - 1, base, base + 1}) {
      const Permutation permutation(n, 3, 0);
      std::vector<bool> seen(static_cast<size_t>(n), false);
      for (int64_t i = 0; i < n; ++i) seen[static_cast<size_t>(permutation(i))] = true;
      ASSERT_EQ(std::count(seen.begin(), seen.end(), true), n) << n;
    }
  }
}

TEST(Permutation, HugeSizesStayInRangeAndDoNotCollide) {
  for (const int64_t n :
       {Permutation::kMaxSize, Permutation::kMaxSize - 1, (int64_t{1} << 47) + 1, int64_t{1} << 33}) {
    const Permutation permutation(n, 1, 2);
    std::vector<int64_t> values;
    for (int64_t i = 0; i < 20000; ++i) values.push_back(permutation(i));
    for (int64_t i = n - 20000; i < n; ++i) values.push_back(permutation(i));
    std::sort(values.begin(), values.end());
    EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
    EXPECT_GE(values.front(), 0);
    EXPECT_LT(values.back(), n);
    // 40,000 values of [0, n): the extremes lie near the ends, or the high bits are not mixed.
    EXPECT_LT(static_cast<double>(values.front()), 0.001 * static_cast<double>(n));
    EXPECT_GT(static_cast<double>(values.back()), 0.999 * static_cast<double>(n));
  }
}

TEST(Permutation, DependsOnSeedAndEpochOnly) {
  constexpr int64_t kSize = 10007;
  const Permutation a(kSize, 1, 0), again(kSize, 1, 0), epoch(kSize, 1, 1), seed(kSize, 2, 0),
      high_seed(kSize, 1 + (uint64_t{1} << 40), 0), high_epoch(kSize, 1, int64_t{1} << 40);
  for (const Permutation* other : {&epoch, &seed, &high_seed, &high_epoch}) {
    int same = 0;
    for (int64_t i = 0; i < kSize; ++i) same += a(i) == (*other)(i);
    EXPECT_LT(same, 12);  // two random permutations agree in one place on average
  }
  int fixed = 0;
  for (int64_t i = 0; i < kSize; ++i) {
    ASSERT_EQ(a(i), again(i));
    fixed += a(i) == i;
  }
  EXPECT_LT(fixed, 12);
}

// Chi-square of where each index goes over many epochs; 5 sigma above its mean would be a broken mixer.
TEST(Permutation, EveryIndexGoesEverywhereAboutEquallyOften) {
  for (const int64_t n : {5, 12, 37, 100}) {
    const int64_t num_epochs = 400 * n;
    std::vector<int64_t> counts(static_cast<size_t>(n * n), 0);
    for (int64_t epoch = 0; epoch < num_epochs; ++epoch) {
      const Permutation permutation(n, 99, epoch);
      for (int64_t i = 0; i < n; ++i) ++counts[static_cast<size_t>(i * n + permutation(i))];
    }
    double chi_square = 0;
    for (const int64_t count : counts) chi_square += std::pow(static_cast<double>(count) - 400.0, 2) / 400.0;
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2 * freedom)) << n;
  }
}

// Neighbours must not stay neighbours: the mean distance of images of i, i + 1 is n / 3 for a random order.
TEST(Permutation, NeighboursAreTornApart) {
  constexpr int64_t kSize = 100000;
  const Permutation permutation(kSize, 11, 4);
  double sum = 0;
  for (int64_t i = 0; i + 1 < kSize; ++i)
    sum += std::abs(static_cast<double>(permutation(i) - permutation(i + 1)));
  EXPECT_NEAR(sum / kSize, kSize / 3.0, 0.02 * kSize);
}

TEST(Permutation, ImpossibleSizesAreRefused) {
  EXPECT_NE(refusal([] { Permutation(0, 1, 0); }).find("permutation of 0 elements"), std::string::npos);
  EXPECT_NE(refusal([] { Permutation(-5, 1, 0); }).find("permutation of -5 elements"), std::string::npos);
  EXPECT_NE(refusal([] { Permutation(Permutation::kMaxSize + 1, 1, 0); }).find("1 to 2^48"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::data
