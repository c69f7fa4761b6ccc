// Generation over a cache gives the logits of the whole sequence, however the tokens come in.
#include <gtest/gtest.h>

#include "infer/inference_support.h"
#include "interpret/check/check.h"
#include "schedule/build.h"

namespace pleat::infer::testing {
namespace {

constexpr int64_t kLength = 17;
using Appends = std::vector<std::vector<std::vector<int32_t>>>;

class Cache : public ::testing::TestWithParam<std::tuple<ModelCase, std::string>> {
 protected:
  config::Config config(int threads = 2) const {
    return case_config(std::get<0>(GetParam()), std::get<1>(GetParam()), threads);
  }
  // Logits grow to about 5 here, so this is the bound of the contract in both types.
  double bound() const { return std::get<1>(GetParam()) == "float64" ? 1e-10 : 1e-5; }

  Logits run(const Appends& appends, int64_t prefill_rows, bool whole = false, int threads = 2) const {
    InferenceChoice choice;
    choice.num_sequences = static_cast<int64_t>(appends.front().size());
    choice.max_length = kLength;
    choice.prefill_rows = prefill_rows;
    choice.all_logits = true;
    choice.whole_sequences = whole;
    Inference model(config(threads), choice);
    fill_weights(model);
    const auto next = make_next_token(model);
    const Logits first = logits_of(*next, appends);
    // A second use of the same caches finds nothing of the first.
    EXPECT_EQ(logits_of(*next, appends), first);
    return first;
  }
};

TEST_P(Cache, EqualsTheWholeSequence) {
  const std::vector<int32_t> tokens = random_tokens(kLength, 37, 1);
  const Logits whole = run({{tokens}}, 1, true);
  ASSERT_EQ(whole.size(), size_t(kLength));
  EXPECT_LE(largest_difference(run({{tokens}}, kLength), whole), bound()) << "in one piece";
  EXPECT_LE(largest_difference(run({{tokens}}, 5), whole), bound()) << "in chunks";
  EXPECT_LE(largest_difference(run({{tokens}}, 1), whole), bound()) << "token by token";
  Appends prompt_then_steps = {{std::vector<int32_t>(tokens.begin(), tokens.begin() + 9)}};
  for (size_t i = 9; i < tokens.size(); ++i) prompt_then_steps.push_back({{tokens[i]}});
  EXPECT_LE(largest_difference(run(prompt_then_steps, 4), whole), bound()) << "prompt, then steps";
}

TEST_P(Cache, RaggedBatch) {
  const auto tokens = [](int64_t n, uint64_t seed) { return random_tokens(n, 37, seed); };
  // Lengths 11, 1, 0 and 6 at first; then some grow, by different amounts; one token each at last.
  const Appends appends = {{tokens(11, 2), tokens(1, 3), {}, tokens(6, 4)},
                           {{}, tokens(4, 5), tokens(7, 6), tokens(1, 7)},
                           {tokens(1, 8), {}, tokens(1, 9), tokens(1, 10)},
                           {tokens(1, 11), tokens(1, 12), {}, {}}};
  const Logits ragged = run(appends, 4);
  EXPECT_LE(largest_difference(ragged, run(appends, 1, true)), bound());
  for (int64_t b = 0; b < 4; ++b) {
    Appends alone;
    Logits part;
    for (const auto& a : appends) alone.push_back({a[size_t(b)]});
    for (const auto& [where, row] : ragged)
      if (where.first == b) part.emplace(std::pair(int64_t{0}, where.second), row);
    EXPECT_LE(largest_difference(run(alone, 4), part), bound()) << "sequence " << b << " alone";
  }
}

TEST_P(Cache, BitsDoNotDependOnThreads) {
  const Appends appends = {{random_tokens(9, 37, 2), random_tokens(3, 37, 3)},
                           {random_tokens(1, 37, 4), random_tokens(1, 37, 5)}};
  EXPECT_EQ(run(appends, 4, false, 1), run(appends, 4, false, 3));
}

INSTANTIATE_TEST_SUITE_P(Models, Cache,
                         ::testing::Combine(::testing::ValuesIn(model_cases()),
                                            ::testing::Values("float32", "float64")),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                         });

TEST(CacheSize, FollowsTheFormula) {
  const auto bytes = [](const std::string& name, const std::string& dtype) {
    for (const ModelCase& c : model_cases())
      if (c.name == name) return model::cache_bytes(case_config(c, dtype).model, 1000);
    return int64_t{-1};
  };
  // Two layers; keys and values of 2 heads of 6; 4 bytes.
  EXPECT_EQ(bytes("GroupedQuery", "float32"), 2 * 1000 * 2 * 2 * 6 * 4);
  EXPECT_EQ(bytes("GroupedQuery", "float64"), 2 * 1000 * 2 * 2 * 6 * 8);
  // The compressed vector and the rotated key, whatever the number of heads.
  EXPECT_EQ(bytes("Latent", "float32"), 2 * 1000 * (10 + 4) * 4);
  // One of two layers keeps its window only.
  EXPECT_EQ(bytes("Window", "float32"), (4 + 1000) * 2 * 2 * 6 * 4);
}

class NextTokenErrors : public ::testing::Test {
 protected:
  NextTokenErrors() : model_(case_config(model_cases()[0], "float32"), choice()) { fill_weights(model_); }
  static InferenceChoice choice() {
    InferenceChoice c;
    c.num_sequences = 2;
    c.max_length = 6;
    c.prefill_rows = 4;
    return c;
  }
  Inference model_;
};

TEST_F(NextTokenErrors, RefusedBeforeAnythingChanges) {
  const auto next = make_cached(model_);
  next->append({{1, 2, 3}, {4}});
  const std::vector<double> before = next->logits(0);
  EXPECT_THROW(next->append({{1, 2, 3, 4}, {}}), base::Error);
  EXPECT_THROW(next->append({{1}, {37}}), base::Error);
  EXPECT_THROW(next->append({{1}, {-1}}), base::Error);
  EXPECT_EQ(next->length(0), 3);
  EXPECT_EQ(next->length(1), 1);
  EXPECT_EQ(next->logits(0), before);
  next->append({{5}, {5}});
  EXPECT_EQ(next->length(0), 4);
}

TEST_F(NextTokenErrors, LogitsOfTheLastTokenOnly) {
  // The same with and without logits of every row, for prompts that end in different pieces.
  InferenceChoice all = choice();
  all.all_logits = true;
  Inference other(model_.config(), all);
  fill_weights(other);
  const auto a = make_cached(model_), b = make_cached(other);
  const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3, 4, 5}, {6, 7}};
  a->append(prompts), b->append(prompts);
  for (int64_t s = 0; s < 2; ++s)
    for (size_t v = 0; v < 37; ++v) EXPECT_NEAR(a->logits(s)[v], b->logits(s)[v], 1e-5);
}

TEST(InferenceState, HoldsNoOptimizer) {
  const config::Config c = case_config(model_cases()[0], "float32");
  const auto table = model::make_parameters(c);
  const program::Program full = schedule::build_decode(c, table, {1, 1, 8, false});
  const program::Program slim = schedule::without_optimizer_state(full);
  EXPECT_LT(slim.values.size(), full.values.size());
  EXPECT_TRUE(interpret::check(slim).ok());
  for (const program::Value& v : slim.values) EXPECT_NE(v.owner, program::Owner::Optimizer) << v.name;
  EXPECT_EQ(slim.stages.size(), full.stages.size());
  const program::Program train = schedule::build_training_step(c, table);
  EXPECT_EQ(schedule::without_optimizer_state(train), train) << "a training step uses its moments";
}

}  // namespace
}  // namespace pleat::infer::testing
