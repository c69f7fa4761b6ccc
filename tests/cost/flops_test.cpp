// FLOPs of published models to the figures others report, and hardware FLOPs against model FLOPs.
#include "cost/flops.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "model/decoder.h"
#include "support/small_models.h"

namespace pleat::cost {
namespace {

struct Published {
  const char* file;        // configs/models
  double gflop_per_token;  // sequences of 4096
  double total, active;    // billions of parameters, to half of the last digit published; 0: not published
  double digit;
};

// Totals: model cards. Mixtral 46.7 / 12.9 and 141 / 39; Qwen2 57.4 / 14; Qwen3 30.5 / 3.3 and 235 / 22;
// DeepSeek 15.7 / 2.4, 236 / 21, 671 / 37 (embedding and head counted in); Kimi-K2 1 T / 32, without the
// embedding;
// gpt-oss 20.9 / 3.6 and 116.8 / 5.1 (active without the embedding there).
constexpr Published kPublished[] = {
    {"qwen3-30b-a3b", 23.01, 30.53, 0, 0.01}, {"mixtral-8x7b", 79.7, 46.7, 12.9, 0.1},
    {"mixtral-8x22b", 242.2, 141, 39, 1},     {"qwen2-57b-a14b", 84.65, 57.4, 0, 0.1},
    {"qwen3-235b-a22b", 148.03, 235, 22, 1},  {"deepseek-v2-lite", 16.39, 15.7, 0, 0.1},
    {"deepseek-v3", 259.99, 671, 37, 1},      {"kimi-k2", 204.48, 1026, 0, 1},
    {"gpt-oss-20b", 24.05, 20.9, 0, 0.1},     {"gpt-oss-120b", 0, 116.8, 0, 0.1},
    {"deepseek-v2", 0, 236, 21, 1},           {"olmoe-1b-7b", 0, 6.9, 1.3, 0.1},
};

config::Config make(const std::string& text, const std::vector<std::string>& sets = {}) {
  return config::resolve(config::parse(text, sets, "test.toml"));
}

config::Config published(const std::string& file, const std::vector<std::string>& sets = {}) {
  return config::resolve(
      config::load(std::string(PLEAT_SOURCE_DIR) + "/configs/models/" + file + ".toml", sets));
}

double gflop_per_token(const std::string& file, double seq_len, const std::vector<std::string>& sets = {}) {
  return model_flops(published(file, sets), 1, seq_len).total() / 1e9;
}

// Half of the last digit that is given.
TEST(ModelFlops, PublishedModelsAt4096) {
  for (const Published& m : kPublished) {
    if (m.gflop_per_token == 0) continue;
    const double digit = m.gflop_per_token == 79.7 || m.gflop_per_token == 242.2 ? 0.1 : 0.01;
    EXPECT_NEAR(gflop_per_token(m.file, 4096), m.gflop_per_token, 0.501 * digit) << m.file;
  }
  EXPECT_NEAR(gflop_per_token("deepseek-v3", 4096, {"model.num_mtp_layers=0"}), 249.81, 0.005);
}

TEST(ModelFlops, PublishedSizes) {
  for (const Published& m : kPublished) {
    const config::Config c = published(m.file);
    const model::ParameterCount count = model::count_parameters(c, model::make_parameters(c));
    EXPECT_NEAR(double(count.total) / 1e9, m.total, 0.501 * m.digit) << m.file;
    if (m.active > 0) {
      EXPECT_NEAR(double(count.active) / 1e9, m.active, 0.6 * m.digit) << m.file;
    }
  }
  const config::Config k = published("kimi-k2");
  EXPECT_NEAR((double(model::count_parameters(k, model::make_parameters(k)).active) - 163840.0 * 7168) / 1e9,
              32, 0.5);
  // 11.5 B of its own, says the model card; with the copies of embedding and head that files hold, the 14 B
  // of the model card.
  const config::Config c = published("deepseek-v3");
  const double mtp = double(model::count_parameters(c, model::make_parameters(c)).mtp) / 1e9;
  EXPECT_NEAR(mtp, 11.61, 0.005);
  EXPECT_NEAR(mtp + 2.0 * 7168 * 129280 / 1e9, 14, 0.6);
}

// Three of four layers mix tokens by a gated delta net, which no config here can say.
TEST(ModelFlops, Qwen3NextFromItsDescription) {
  Architecture a;
  a.hidden = 2048, a.vocab = 151936;
  a.attention_layers = 12, a.delta_layers = 36, a.moe_layers = 48;
  a.heads = 16, a.kv_heads = 2, a.head_dim = 256, a.output_gate = true;
  a.delta_key_heads = 16, a.delta_key_dim = 128, a.delta_value_heads = 32, a.delta_value_dim = 128;
  a.delta_taps = 4;
  a.expert_ffn = 512, a.top_k = 10, a.shared_ffn = 512;
  a.mtp_layers = 1, a.mtp_is_moe = true;
  // The published count runs the pattern of layers on over the layer of multi-token prediction.
  a.mtp_mixer = Mixer::Delta;
  EXPECT_NEAR(model_flops(a, 1, 4096).total() / 1e9, 25.08, 0.005);
  a.mtp_mixer = Mixer::Attention;
  EXPECT_NEAR(model_flops(a, 1, 4096).total() / 1e9, 25.13, 0.005);
}

TEST(ModelFlops, LongSequences) {
  EXPECT_NEAR(gflop_per_token("qwen3-235b-a22b", 131072), 734.7, 0.05);
  // 27.9 counts the router's matrix as well, which model FLOPs leave out.
  const double router = 6.0 * 48 * 128 * 2048 / 1e9;
  EXPECT_NEAR(gflop_per_token("qwen3-30b-a3b", 8192) + router, 27.914, 0.001);
  EXPECT_NEAR(gflop_per_token("qwen3-30b-a3b", 8192), 27.9, 3e-3 * 27.9);
  // With the whole square of attention instead of the causal half: the same core once more.
  const ModelFlops f = model_flops(published("qwen3-30b-a3b"), 1, 8192);
  EXPECT_NEAR((f.total() + f.attention_core) / 1e9 + router, 37.577, 0.001);
}

TEST(ModelFlops, ScalesAsItMust) {
  const config::Config c = published("qwen2-57b-a14b");
  const ModelFlops one = model_flops(c, 1000, 4096), two = model_flops(c, 2000, 4096),
                   longer = model_flops(c, 1000, 8192);
  EXPECT_DOUBLE_EQ(two.total(), 2 * one.total());
  EXPECT_DOUBLE_EQ(longer.attention_core, 2 * one.attention_core);
  EXPECT_DOUBLE_EQ(longer.total() - longer.attention_core, one.total() - one.attention_core);
  // Eight experts of 2560 beside one shared expert of 20480: equal shares.
  EXPECT_DOUBLE_EQ(one.routed, one.shared);
  EXPECT_EQ(one.dense, 0);
  EXPECT_DOUBLE_EQ(one.total(), one.attention_projections + one.attention_core + one.dense + one.routed +
                                    one.shared + one.head + one.mtp);
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

const std::string kSmall = testing::kBuiltModel + R"(
model.num_layers = 3
model.ffn_hidden_size = 48
model.leading_dense_layers = 1
train.num_microbatches = 3
train.loss_chunk = 17
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
  EXPECT_DOUBLE_EQ(hardware_flops(step(c)), model + router + scores);
}

TEST(HardwareFlops, OfMultiTokenPredictionToo) {
  const config::Config plain = make(kSmall), c = make(kSmall, {"model.num_mtp_layers=2"});
  const double tokens = 3 * 2 * 24, seq = 24;
  EXPECT_DOUBLE_EQ(model_flops(c, tokens, seq).total() - model_flops(plain, tokens, seq).total(),
                   model_flops(c, tokens, seq).mtp);
  // Beside the model's: two routers, scores formed again, and norms that are not matrix products.
  const double router = 6 * tokens * 2 * 8 * 32, scores = tokens * seq * 2 * 32,
               norms = 6 * tokens * 2 * 3 * 32;
  EXPECT_DOUBLE_EQ(hardware_flops(step(c)) - hardware_flops(step(plain)),
                   model_flops(c, tokens, seq).mtp + router + scores - norms);
}

TEST(HardwareFlops, CountReplaysAndPadding) {
  const config::Config c = make(kSmall);
  program::Program p = step(c);
  const double plain = hardware_flops(p);
  const program::Stage* up = nullptr;
  for (const program::Stage& s : p.stages)
    if (s.op == program::Op::expert_up && s.phase == program::Phase::Forward) up = &s;
  ASSERT_NE(up, nullptr);
  program::Stage again = *up;
  again.replay = 1;
  // 96 routed rows, 32 wide, into gate and up of 24.
  EXPECT_DOUBLE_EQ(stage_flops(p, again), 2.0 * 96 * 32 * 48);
  p.stages.push_back(again);
  EXPECT_DOUBLE_EQ(hardware_flops(p), plain + 2.0 * 96 * 32 * 48);
  EXPECT_GT(hardware_flops(p), model_flops(c, 3 * 48, 24).total());

  const config::Config padded = make(kSmall, {"moe.capacity_factor=2.0", "moe.pad_to_capacity=true"});
  const double routed = model_flops(c, 3 * 48, 24).routed;
  EXPECT_DOUBLE_EQ(hardware_flops(step(padded)), plain + routed) << "twice the rows of the model";
}

TEST(HardwareFlops, WindowBoundsAttention) {
  const config::Config full = make(kSmall), window = make(kSmall, {"model.sliding_window=6"});
  const double core = 7 * 144.0 * 24 * 3 * 32;  // all products of all layers, causal half
  EXPECT_DOUBLE_EQ(hardware_flops(step(full)) - hardware_flops(step(window)), core / 2);
}

}  // namespace
}  // namespace pleat::cost
