// Biases that balance experts, moved by counts that real ranks sum: the same floats as on one rank, whatever the layout.
// Counts are integers, so there is no rounding to allow for.
#include <gtest/gtest.h>

#include <numeric>

#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

// A rate that is large against the spread of scores: by the second step the biases choose.
const std::vector<std::string> kBalanced = {"moe.score=\"sigmoid\"", "moe.load_balancing=[\"bias\"]",
                                            "moe.aux_coef=[]", "moe.bias_update_rate=0.05",
                                            "train.micro_batch=2"};
constexpr int64_t kBiasSteps = 5;

config::Config balanced_model(std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), kBalanced.begin(), kBalanced.end());
  return small_model(sets);
}

struct BiasLayout {
  const char* name;
  model::Mesh mesh;
};

std::vector<BiasLayout> bias_layouts() {
  std::vector<BiasLayout> out = {{"EP2", mesh_of({.dp = 2, .ep = 2})},
                                 {"EP2 allgather", mesh_of({.dp = 2, .ep = 2})},
                                 {"TP2", mesh_of({.tp = 2})},
                                 {"PP2", mesh_of({.pp = 2})},
                                 {"CP2 allgather", mesh_of({.cp = 2})},
                                 {"CP2 alltoall", mesh_of({.cp = 2})},
                                 {"CP2 ring", mesh_of({.cp = 2})},
                                 {"DP2", mesh_of({.dp = 2})},
                                 {"EP2 x TP2", mesh_of({.tp = 2, .dp = 2, .ep = 2})},
                                 {"PP2 x EP2 x TP2", mesh_of({.tp = 2, .dp = 2, .pp = 2, .ep = 2})}};
  out[1].mesh.dispatcher = model::Dispatcher::AllGather;
  out[5].mesh.context = model::ContextKind::AllToAll;
  out[6].mesh.context = model::ContextKind::Ring;
  return out;
}

LayoutRun balanced_run(const config::Config& c, const model::Mesh& mesh, Fault fault = Fault::None) {
  RunOptions options;
  options.num_steps = kBiasSteps;
  options.fault = fault;
  return run_on(c, mesh, options);
}

void expect_same_biases(const LayoutRun& one, const LayoutRun& run, size_t num_layers) {
  ASSERT_EQ(one.steps.size(), run.steps.size());
  for (size_t s = 0; s < one.steps.size(); ++s) {
    ASSERT_EQ(one.steps[s].layers.size(), num_layers);
    ASSERT_EQ(run.steps[s].layers.size(), num_layers);
    for (const auto& [layer, expected] : one.steps[s].layers) {
      const LayerResults& got = run.steps[s].layers.at(layer);
      ASSERT_FALSE(expected.bias.empty());
      EXPECT_EQ(got.load, expected.load) << "step " << s + 1 << " layer " << layer;
      EXPECT_EQ(got.bias, expected.bias) << "step " << s + 1 << " layer " << layer;
    }
  }
}

TEST(BiasBalancing, EveryLayoutHasTheBiasesOfOneRank) {
  const config::Config c = balanced_model();
  const LayoutRun one = balanced_run(c, {});
  for (const BiasLayout& layout : bias_layouts()) {
    SCOPED_TRACE(layout.name);
    const LayoutRun run = balanced_run(c, layout.mesh);
    expect_same_biases(one, run, 2);
    EXPECT_EQ(difference(c, one, run), "");
  }
}

// The comparison above compares something: the biases move, apart from each other, and move tokens.
TEST(BiasBalancing, BiasesMoveTokens) {
  const LayoutRun moving = balanced_run(balanced_model(), {}),
                  still = balanced_run(balanced_model({"moe.bias_update_rate=1e-30"}), {});
  const LayerResults& last = moving.steps.back().layers.at(1);
  EXPECT_GT(*std::max_element(last.bias.begin(), last.bias.end()), 0.04f);
  EXPECT_LT(*std::min_element(last.bias.begin(), last.bias.end()), -0.04f);
  EXPECT_EQ(moving.steps[0].layers.at(0).load, still.steps[0].layers.at(0).load);
  EXPECT_NE(last.load, still.steps.back().layers.at(1).load);
}

// And it fails when the last rank's tokens are not counted.
TEST(BiasBalancing, ForgottenCountsAreNoticed) {
  const config::Config c = balanced_model();
  const LayoutRun one = balanced_run(c, {});
  for (const BiasLayout& layout : bias_layouts()) {
    if (layout.mesh.pp > 1) continue;  // with one stage a row, the last rank sums with nobody
    SCOPED_TRACE(layout.name);
    const Comparison result =
        compare(one, balanced_run(c, layout.mesh, Fault::DropCounts), model::make_parameters(c));
    EXPECT_FALSE(result.load_equal);
    EXPECT_FALSE(result.bias_equal);
    EXPECT_NE(result.verdict(1e-10), "");
  }
}

// 40,840 tokens of one expert against a mean of 40,960, counted by many ranks, each about 640 of them: a sum that
// rounds to 16 bits takes them for equal, and the bias would stay. Experts are given, tokens and ranks are real.
class CountedByRanks : public ::testing::TestWithParam<int> {};

constexpr int kCounted = 64, kCountedTokens = 20 * 64;

// Expert 0 gets `counts[mb]` tokens of microbatch mb, the other three share the rest evenly.
std::vector<Routing> counted_routing(const std::vector<int64_t>& counts) {
  std::vector<int64_t> load(4, 0);
  Routing out;
  for (int mb = 0; mb < kCounted; ++mb) {
    std::vector<int32_t>& to = out[fmt::format("mb{}.L0", mb)];
    for (int64_t t = 0; t < kCountedTokens; ++t) {
      std::vector<int32_t> rest = {1, 2, 3};
      std::stable_sort(rest.begin(), rest.end(),
                       [&](int32_t a, int32_t b) { return load[size_t(a)] < load[size_t(b)]; });
      std::vector<int32_t> two = {t < counts[size_t(mb)] ? 0 : rest[1], rest[0]};
      std::sort(two.begin(), two.end());
      for (const int32_t e : two) ++load[size_t(e)], to.push_back(e);
    }
  }
  return {out};
}

TEST_P(CountedByRanks, MoveTheBiasAsOneRankDoes) {
  std::vector<int64_t> counts(kCounted, 638);
  for (size_t i = 0; i < 32; ++i)
    counts[2 * i] += static_cast<int64_t>(i % 31), counts[2 * i + 1] -= static_cast<int64_t>(i % 31);
  for (size_t i = 0; i < 8; ++i) counts[i] += 1;
  ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 40840);
  const config::Config c = balanced_model(
      {"model.num_layers=1", "model.num_heads=1", "model.num_kv_heads=1", "model.hidden_size=8",
       "moe.num_experts=4", "moe.bias_update_rate=0.001", "train.micro_batch=20", "train.seq_len=64",
       fmt::format("train.num_microbatches={}", kCounted)});
  RunOptions options;
  options.num_steps = 1;
  options.routing = model::RoutingUse::Replay;
  options.replay = counted_routing(counts);
  Batch batch = random_batch(c, 1, 1);
  for (runtime::Microbatch& m : batch.microbatches) std::fill(m.valid.begin(), m.valid.end(), uint8_t{1});
  batch.valid_tokens = int64_t{kCounted} * kCountedTokens;
  options.batches = {batch};

  static const LayoutRun one = run_on(c, {}, options);
  const LayerResults& expected = one.steps[0].layers.at(0);
  EXPECT_EQ(expected.load, (std::vector<int64_t>{40840, 41000, 41000, 41000}));
  EXPECT_EQ(expected.bias, (std::vector<float>{0.001f, -0.001f, -0.001f, -0.001f}));
  expect_same_biases(one, run_on(c, mesh_of({.dp = GetParam()}), options), 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, CountedByRanks, ::testing::Values(2, 8, 64));

}  // namespace
}  // namespace pleat::verify
