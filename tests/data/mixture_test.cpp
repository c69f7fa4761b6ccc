// The blend against a loop that follows the rule's words, and positions that continue exactly.
#include "data/mixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/data_support.h"
#include "data/indexed_writer.h"

namespace pleat::data {
namespace {

class MixtureTest : public ::testing::Test {
 protected:
  // Dataset i of `num_samples` samples of length 4; every token tells source and place.
  std::unique_ptr<IndexedDataset> make(int source, int64_t num_samples) {
    const std::string prefix = folder_.at("s" + std::to_string(source));
    IndexedDatasetWriter writer(prefix, {.vocab_size = 60000, .end_of_document = 0});
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < num_samples * 4; ++i)
      tokens.push_back(static_cast<int32_t>(1 + source * 10000 + i));
    writer.append(tokens);
    writer.end_document();
    writer.finish();
    return std::make_unique<IndexedDataset>(prefix, 60000);
  }
  Mixture mixture(const std::vector<double>& weights, const std::vector<int64_t>& sizes,
                  bool shuffle = true) {
    std::vector<std::unique_ptr<IndexedDataset>> sets;
    for (size_t i = 0; i < sizes.size(); ++i) sets.push_back(make(static_cast<int>(i), sizes[i]));
    return {std::move(sets), weights, {.seq_len = 4, .seed = 11, .shuffle = shuffle}};
  }
  TemporaryFolder folder_;
};

TEST_F(MixtureTest, FollowsTheRule) {
  const std::vector<std::vector<double>> cases = {{1, 1},          {3, 1},       {0.7, 0.2, 0.1},
                                                  {1, 1, 1, 1, 1}, {1e-3, 5, 2}, {2}};
  for (const std::vector<double>& weights : cases) {
    std::vector<int64_t> sizes;
    for (size_t i = 0; i < weights.size(); ++i) sizes.push_back(7 + 5 * static_cast<int64_t>(i));
    const Mixture m = mixture(weights, sizes, false);
    double sum = 0;
    for (const double w : weights) sum += w;
    MixturePosition position = m.start();
    SampleStorage storage(1, 4);
    Sample sample = storage.sample(0);
    std::vector<int64_t> taken(weights.size());
    for (int64_t t = 0; t < 500; ++t) {
      // argmax_i (w_i * max(t, 1) - taken_i), ties to the lowest i.
      std::vector<double> gaps;
      for (size_t i = 0; i < weights.size(); ++i) {
        const volatile double due = weights[i] / sum * static_cast<double>(t < 1 ? 1 : t);
        gaps.push_back(due - static_cast<double>(taken[i]));
      }
      size_t want = 0;
      for (size_t i = weights.size(); i-- > 0;)
        if (gaps[i] >= *std::max_element(gaps.begin(), gaps.end())) want = i;
      std::vector<double> shares;
      for (const double w : weights) shares.push_back(w / sum);
      ASSERT_EQ(blend_pick(shares, taken), want);
      ASSERT_EQ(m.num_taken(position), t);
      ASSERT_EQ(m.next(position, sample), want) << "sample " << t;
      // The source's own next sample, in epochs of its own.
      const int64_t own = taken[want] % sizes[want];
      ASSERT_EQ(sample.tokens[0], static_cast<int32_t>(1 + 10000 * static_cast<int64_t>(want) + own * 4));
      ++taken[want];
      for (size_t i = 0; i < weights.size(); ++i) {
        ASSERT_EQ(m.taken(position, i), taken[i]);
        ASSERT_EQ(position.sources[i], (DataPosition{taken[i] / sizes[i], taken[i] % sizes[i]}));
        ASSERT_LT(std::abs(weights[i] / sum * static_cast<double>(t + 1) - static_cast<double>(taken[i])),
                  2.0);
      }
    }
  }
}

TEST_F(MixtureTest, EveryPositionContinuesExactly) {
  const Mixture m = mixture({5, 2, 1}, {9, 4, 3});
  SampleStorage storage(1, 4);
  Sample sample = storage.sample(0);
  MixturePosition position = m.start();
  std::vector<std::vector<int32_t>> samples;
  std::vector<MixturePosition> positions;
  for (int t = 0; t < 60; ++t) {
    positions.push_back(position);
    m.next(position, sample);
    samples.emplace_back(sample.tokens.begin(), sample.tokens.end());
  }
  const Mixture again = mixture({50, 20, 10}, {9, 4, 3});
  for (size_t from = 0; from < positions.size(); ++from) {
    MixturePosition at = positions[from];
    for (size_t t = from; t < samples.size(); ++t) {
      again.next(at, sample);
      ASSERT_EQ(std::vector<int32_t>(sample.tokens.begin(), sample.tokens.end()), samples[t])
          << from << " " << t;
    }
  }
}

TEST_F(MixtureTest, OneSourceIsItsSampler) {
  const Mixture m = mixture({0.3}, {6});
  SampleStorage storage(2, 4);
  Sample a = storage.sample(0), b = storage.sample(1);
  MixturePosition position = m.start();
  DataPosition plain;
  for (int t = 0; t < 20; ++t) {
    m.next(position, a);
    m.sampler(0).next(plain, b);
    ASSERT_TRUE(std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin()));
    ASSERT_EQ(position.sources[0], plain);
  }
}

TEST_F(MixtureTest, BadMixturesAreRefused) {
  EXPECT_NE(refusal([&] { mixture({1, 2}, {5}); }).find("1 datasets with 2 weights"), std::string::npos);
  for (const double bad : {0.0, -1.0, double(NAN), double(INFINITY)})
    EXPECT_NE(refusal([&] { mixture({1, bad}, {5, 5}); }).find("above 0"), std::string::npos);
  const Mixture m = mixture({1, 1}, {5, 5});
  MixturePosition impossible = m.start();
  impossible.sources[0].next_sample = 5;
  EXPECT_NE(refusal([&] { m.sampler(0).window_at(impossible.sources[0]); }).find("impossible"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::data
