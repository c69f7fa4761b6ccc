// FLOPs of published models to the figures others report, and hardware FLOPs against model FLOPs.
#include "cost/flops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "model/decoder.h"

namespace pleat::cost {
namespace {

struct Published {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, head_dim, experts, top_k, ffn, shared, vocab;
  double gflop_per_token;  // sequences of 4096
};

constexpr Published kPublished[] = {
    {"Qwen3-30B-A3B", 48, 2048, 32, 4, 128, 128, 8, 768, 0, 151936, 23.01},
    {"Mixtral-8x7B", 32, 4096, 32, 8, 128, 8, 2, 14336, 0, 32000, 79.7},
    {"Mixtral-8x22B", 56, 6144, 48, 8, 128, 8, 2, 16384, 0, 32768, 242.2},
    {"Qwen2-57B-A14B", 28, 3584, 28, 4, 128, 64, 8, 2560, 20480, 151936, 84.65},
    {"Qwen3-235B-A22B", 94, 4096, 64, 4, 128, 128, 8, 1536, 0, 151936, 148.03},
};

config::Config make(const std::string& text, const std::vector<std::string>& sets = {}) {
  return config::resolve(config::parse(text, sets, "test.toml"));
}

config::Config make(const Published& m) {
  std::string text = fmt::format(
      "model.vocab_size={}\nmodel.hidden_size={}\nmodel.num_layers={}\nmodel.num_heads={}\nmodel.num_kv_"
      "heads={}\n"
      "model.head_dim={}\nmoe.num_experts={}\nmoe.top_k={}\nmoe.ffn_hidden_size={}\n",
      m.vocab, m.hidden, m.layers, m.heads, m.kv_heads, m.head_dim, m.experts, m.top_k, m.ffn);
  if (m.shared) text += fmt::format("moe.shared_ffn_hidden_size={}\n", m.shared);
  return make(text);
}

double gflop_per_token(const Published& m, double seq_len) {
  return model_flops(make(m), 1, seq_len).total() / 1e9;
}

TEST(ModelFlops, PublishedModelsAt4096) {
  for (const Published& m : kPublished)
    EXPECT_NEAR(gflop_per_token(m, 4096), m.gflop_per_token, 1e-3 * m.gflop_per_token) << m.name;
}

TEST(ModelFlops, LongSequences) {
  EXPECT_NEAR(gflop_per_token(kPublished[4], 131072), 734.7, 0.74);
  // 27.9 counts the router's matrix as well, which model FLOPs leave out.
  const double router = 6.0 * 48 * 128 * 2048 / 1e9;
  EXPECT_NEAR(gflop_per_token(kPublished[0], 8192) + router, 27.914, 0.001);
  EXPECT_NEAR(gflop_per_token(kPublished[0], 8192), 27.9, 3e-3 * 27.9);
  // With the whole square of attention instead of the causal half: the same core once more.
  const ModelFlops f = model_flops(make(kPublished[0]), 1, 8192);
  EXPECT_NEAR((f.total() + f.attention_core) / 1e9 + router, 37.577, 0.001);
}

TEST(ModelFlops, ScalesAsItMust) {
  const config::Config c = make(kPublished[3]);
  const ModelFlops one = model_flops(c, 1000, 4096), two = model_flops(c, 2000, 4096),
                   longer = model_flops(c, 1000, 8192);
  EXPECT_DOUBLE_EQ(two.total(), 2 * one.total());
  EXPECT_DOUBLE_EQ(longer.attention_core, 2 * one.attention_core);
  EXPECT_DOUBLE_EQ(longer.total() - longer.attention_core, one.total() - one.attention_core);
  // Eight experts of 2560 beside one shared expert of 20480: equal shares.
  EXPECT_DOUBLE_EQ(one.routed, one.shared);
  EXPECT_EQ(one.dense, 0);
  EXPECT_DOUBLE_EQ(one.total(), one.attention_projections + one.attention_core + one.dense + one.routed +
                                    one.shared + one.head);
}

TEST(ModelFlops, ChosenExpertsCostWhatADenseLayerOfTheirWidthDoes) {
  const std::string sizes = "model.hidden_size=64\nmodel.num_layers=4\n";
  const config::Config dense = make(sizes + "model.ffn_hidden_size=96\n");
  const config::Config moe = make(sizes + "moe.num_experts=16\nmoe.top_k=4\nmoe.ffn_hidden_size=24\n");
  const config::Config more = make(sizes + "moe.num_experts=32\nmoe.top_k=4\nmoe.ffn_hidden_size=24\n");
  const config::Config half = make(sizes +
                                   "moe.num_experts=16\nmoe.top_k=4\nmoe.ffn_hidden_size=24\nmodel.ffn_"
                                   "hidden_size=96\nmodel.moe_layer_freq=2\n");
  EXPECT_DOUBLE_EQ(model_flops(dense, 10, 100).dense, model_flops(moe, 10, 100).routed);
  EXPECT_DOUBLE_EQ(model_flops(moe, 10, 100).total(), model_flops(more, 10, 100).total())
      << "only chosen experts count";
  EXPECT_DOUBLE_EQ(model_flops(half, 10, 100).dense, model_flops(half, 10, 100).routed);
  EXPECT_DOUBLE_EQ(model_flops(half, 10, 100).total(), model_flops(dense, 10, 100).total());
}

const std::string kSmall = R"(
[model]
vocab_size = 61
hidden_size = 32
num_layers = 3
num_heads = 4
num_kv_heads = 2
ffn_hidden_size = 48
leading_dense_layers = 1
[moe]
num_experts = 8
ffn_hidden_size = 24
shared_ffn_hidden_size = 40
[train]
micro_batch = 2
num_microbatches = 3
seq_len = 24
loss_chunk = 17
)";

program::Program step(const config::Config& config) {
  const auto table = model::make_parameters(config);
  program::Builder b("train");
  const int n = static_cast<int>(config.train.num_microbatches);
  model::Decoder d = model::declare(config, table, b, {model::Purpose::Train, n});
  for (int mb = 0; mb < n; ++mb) {
    model::forward(d, mb);
    model::backward(d, mb);
  }
  model::update(d);
  return b.take();
}

TEST(HardwareFlops, AreModelFlopsPlusRouterPlusOneProductOfAttention) {
  const config::Config c = make(kSmall);
  const double tokens = 3 * 2 * 24, seq = 24;
  const double model = model_flops(c, tokens, seq).total();
  const double router = 6 * tokens * 2 * 8 * 32;
  // The backward forms the scores again: five products beside the model's four.
  const double scores = tokens * seq * 3 * 32;
  EXPECT_DOUBLE_EQ(hardware_flops(step(c), 24), model + router + scores);
}

TEST(HardwareFlops, CountReplaysAndPadding) {
  const config::Config c = make(kSmall);
  program::Program p = step(c);
  const double plain = hardware_flops(p, 24);
  const program::Stage* up = nullptr;
  for (const program::Stage& s : p.stages)
    if (s.op == program::Op::expert_up && s.phase == program::Phase::Forward) up = &s;
  ASSERT_NE(up, nullptr);
  program::Stage again = *up;
  again.replay = 1;
  // 96 routed rows, 32 wide, into gate and up of 24.
  EXPECT_DOUBLE_EQ(stage_flops(p, again, 24), 2.0 * 96 * 32 * 48);
  p.stages.push_back(again);
  EXPECT_DOUBLE_EQ(hardware_flops(p, 24), plain + 2.0 * 96 * 32 * 48);
  EXPECT_GT(hardware_flops(p, 24), model_flops(c, 3 * 48, 24).total());

  const config::Config padded = make(kSmall, {"moe.capacity_factor=2.0", "moe.pad_to_capacity=true"});
  const double routed = model_flops(c, 3 * 48, 24).routed;
  EXPECT_DOUBLE_EQ(hardware_flops(step(padded), 24), plain + routed) << "twice the rows of the model";
}

TEST(HardwareFlops, WindowBoundsAttention) {
  const config::Config full = make(kSmall), window = make(kSmall, {"model.sliding_window=6"});
  const double core = 7 * 144.0 * 24 * 3 * 32;  // all products of all layers, causal half
  EXPECT_DOUBLE_EQ(hardware_flops(step(full), 24) - hardware_flops(step(window), 24), core / 2);
}

}  // namespace
}  // namespace pleat::cost
