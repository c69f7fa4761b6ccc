// The parameter table: names, shapes, the ownership record, counts of a published model.
#include "model/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "model/decoder.h"
#include "support/small_models.h"

namespace pleat::model {
namespace {

config::Config make(const std::string& text, const std::vector<std::string>& sets = {}) {
  return config::resolve(config::parse(text, sets, "test.toml"));
}

const std::string kEverything = testing::kBuiltModel + R"(
model.num_layers = 2
model.head_dim = 6
model.ffn_hidden_size = 48
model.leading_dense_layers = 1
model.qk_norm = true
model.qkv_bias = true
model.attn_out_bias = true
model.mlp_bias = true
moe.shared_gate = true
moe.router_bias = true
)";

const std::string kQwen3_30B = R"(
[model]
vocab_size = 151936
hidden_size = 2048
num_layers = 48
num_heads = 32
num_kv_heads = 4
head_dim = 128
qk_norm = true
[moe]
num_experts = 128
top_k = 8
ffn_hidden_size = 768
)";

TEST(Parameters, LayersOfMultiTokenPrediction) {
  const config::Config plain = make(kEverything), c = make(kEverything, {"model.num_mtp_layers=1"});
  const auto before = make_parameters(plain), after = make_parameters(c);
  // Behind the last layer, before the final norm: five tensors of their own and a layer like the last.
  const auto first =
      std::find_if(after.begin(), after.end(), [](const Parameter& p) { return p.layer == 2; });
  std::vector<std::string> own, layer, last;
  for (const Parameter& p : after) {
    if (p.layer == 2 && p.name.starts_with("layers.2.mtp.")) own.push_back(p.name.substr(13));
    if (p.layer == 2 && !p.name.starts_with("layers.2.mtp.")) layer.push_back(p.name.substr(9));
    if (p.layer == 1) last.push_back(p.name.substr(9));
  }
  EXPECT_EQ(own, (std::vector<std::string>{"embed_norm.weight", "hidden_norm.weight", "embed_proj.weight",
                                           "hidden_proj.weight", "final_norm.weight"}));
  EXPECT_EQ(layer, last);
  EXPECT_EQ(after.size(), before.size() + own.size() + layer.size());
  EXPECT_EQ(after[after.size() - 2].name, "final_norm.weight");
  EXPECT_EQ((first - 1)->layer, 1);
  const ParameterCount a = count_parameters(plain, before), b = count_parameters(c, after);
  EXPECT_EQ(b.total, a.total);
  EXPECT_EQ(b.active, a.active);
  int64_t last_layer = 0;
  for (const Parameter& p : before) last_layer += p.layer == 1 ? num_elements(p) : 0;
  EXPECT_EQ(b.mtp, last_layer + 2 * 32 * 32 + 3 * 32);
}

TEST(Parameters, NamesAndShapesInCanonicalOrder) {
  using Row = std::pair<std::string, std::vector<int64_t>>;
  const std::vector<Row> expected = {
      {"embedding.weight", {61, 32}},
      {"layers.0.attn_norm.weight", {32}},
      {"layers.0.attn.qkv.weight", {48, 32}},
      {"layers.0.attn.qkv.bias", {48}},
      {"layers.0.attn.q_norm.weight", {6}},
      {"layers.0.attn.k_norm.weight", {6}},
      {"layers.0.attn.out.weight", {32, 24}},
      {"layers.0.attn.out.bias", {32}},
      {"layers.0.mlp_norm.weight", {32}},
      {"layers.0.mlp.up.weight", {96, 32}},
      {"layers.0.mlp.up.bias", {96}},
      {"layers.0.mlp.down.weight", {32, 48}},
      {"layers.0.mlp.down.bias", {32}},
      {"layers.1.attn_norm.weight", {32}},
      {"layers.1.attn.qkv.weight", {48, 32}},
      {"layers.1.attn.qkv.bias", {48}},
      {"layers.1.attn.q_norm.weight", {6}},
      {"layers.1.attn.k_norm.weight", {6}},
      {"layers.1.attn.out.weight", {32, 24}},
      {"layers.1.attn.out.bias", {32}},
      {"layers.1.mlp_norm.weight", {32}},
      {"layers.1.router.weight", {8, 32}},
      {"layers.1.router.bias", {8}},
      {"layers.1.experts.up.weight", {8, 48, 32}},
      {"layers.1.experts.down.weight", {8, 32, 24}},
      {"layers.1.shared.up.weight", {80, 32}},
      {"layers.1.shared.down.weight", {32, 40}},
      {"layers.1.shared.gate.weight", {32}},
      {"final_norm.weight", {32}},
      {"head.weight", {61, 32}},
  };
  std::vector<Row> got;
  for (const Parameter& p : make_parameters(make(kEverything))) got.emplace_back(p.name, p.shape);
  EXPECT_EQ(got, expected);
}

TEST(Parameters, OwnershipRecordIsConsistent) {
  const config::Config config = make(kEverything);
  for (const Parameter& p : make_parameters(config)) {
    SCOPED_TRACE(p.name);
    const std::set<Axis> replicated(p.replicated.begin(), p.replicated.end());
    EXPECT_EQ(replicated.size(), p.replicated.size());
    std::set<Axis> cut;
    for (const Shard& s : p.sharded) {
      EXPECT_TRUE(cut.insert(s.axis).second);
      EXPECT_FALSE(replicated.contains(s.axis)) << "cut and replicated along one axis";
      EXPECT_LT(s.dim, static_cast<int64_t>(p.shape.size()));
      EXPECT_GE(s.dim, 0);
    }
    // A gradient is a sum over ranks only where those ranks hold the same weight.
    for (Axis axis : p.gradient_partial) EXPECT_TRUE(replicated.contains(axis));
    // Every axis of the parameter's own mesh is accounted for, and none of the other mesh.
    const bool expert = p.parameter_class == ParameterClass::Experts;
    std::set<Axis> all = replicated;
    all.insert(cut.begin(), cut.end());
    EXPECT_EQ(all, expert ? (std::set<Axis>{Axis::Expert, Axis::ExpertTensor, Axis::ExpertData})
                          : (std::set<Axis>{Axis::Tensor, Axis::Context, Axis::Data}));
    EXPECT_EQ(p.pads, p.name == "embedding.weight" || p.name == "head.weight");
    EXPECT_EQ(p.layer >= 0, p.name.starts_with("layers."));
    EXPECT_EQ(p.is_bias, p.name.ends_with(".bias"));
    if (p.is_bias) {
      EXPECT_EQ(p.init, Init::Zeros);
    }
    if (p.parameter_class == ParameterClass::Norm) {
      EXPECT_EQ(p.init, Init::Ones);
    }
  }
}

TEST(Parameters, BlocksCoverTheirDimensionWithoutGaps) {
  int with_blocks = 0;
  for (const Parameter& p : make_parameters(make(kEverything))) {
    if (p.blocks.empty()) continue;
    SCOPED_TRACE(p.name);
    ++with_blocks;
    int64_t next = 0;
    std::set<std::string> names;
    for (const Block& b : p.blocks) {
      EXPECT_EQ(b.dim, p.blocks[0].dim);
      EXPECT_EQ(b.begin, next);
      EXPECT_GT(b.size, 0);
      EXPECT_TRUE(names.insert(b.name).second);
      next = b.begin + b.size;
    }
    EXPECT_EQ(next, p.shape[static_cast<size_t>(p.blocks[0].dim)]);
  }
  EXPECT_EQ(with_blocks, 4 + 2 + 1 + 1);  // qkv and dense up with their biases; experts up, shared up
}

TEST(Parameters, ResidualMatricesStartSmaller) {
  const auto table = make_parameters(make(kEverything));
  const double small = 0.02 / std::sqrt(4.0);
  for (const Parameter& p : table) {
    const bool residual = p.name.ends_with("out.weight") || p.name.ends_with("down.weight");
    EXPECT_DOUBLE_EQ(p.init_std, residual ? small : 0.02) << p.name;
  }
  for (const Parameter& p : make_parameters(make(kEverything, {"model.scale_residual_init=false"})))
    EXPECT_DOUBLE_EQ(p.init_std, 0.02) << p.name;
}

TEST(Parameters, TiedHeadIsCountedOnce) {
  const config::Config untied = make(kEverything), tied = make(kEverything, {"model.tie_embeddings=true"});
  const auto a = make_parameters(untied), b = make_parameters(tied);
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(b.back().tied_to, "embedding.weight");
  EXPECT_EQ(count_parameters(untied, a).total - count_parameters(tied, b).total, 61 * 32);
  EXPECT_EQ(find_parameter(b, "head.weight"), static_cast<int>(b.size()) - 1);
  EXPECT_EQ(find_parameter(b, "head"), -1);
}

TEST(Parameters, Qwen3_30B_A3B) {
  const config::Config config = make(kQwen3_30B);
  const auto table = make_parameters(config);
  const ParameterCount count = count_parameters(config, table);
  EXPECT_EQ(count.total, 30532122624);
  EXPECT_NEAR(double(count.total), 30.53e9, 0.005e9);
  // Active parameters in matrix products: attention projections, router, the chosen experts and the head. The
  // embedding is a lookup and norms multiply element by element; `active` counts those too.
  int64_t lookup_and_norms = 0;
  for (const Parameter& p : table)
    if (p.parameter_class == ParameterClass::Embedding || p.parameter_class == ParameterClass::Norm)
      lookup_and_norms += num_elements(p);
  EXPECT_NEAR(double(count.active - lookup_and_norms), 3.04e9, 0.005e9);
  EXPECT_EQ(count.active - lookup_and_norms,
            int64_t{48} * (2048 * (4096 + 2 * 512) + 4096 * 2048 + 128 * 2048 + 8 * 3 * 768 * 2048) +
                int64_t{151936} * 2048);
}

TEST(Decoder, AuxCoefficientsFollowTheirNames) {
  const AuxCoefficients a =
      aux_coefficients(make(kEverything, {"moe.load_balancing=[\"global_aux\",\"aux\",\"seq_aux\"]",
                                          "moe.aux_coef=[0.3,0.1,0.2]", "moe.z_coef=0.5"}));
  EXPECT_EQ(a.global, 0.3);
  EXPECT_EQ(a.micro, 0.1);
  EXPECT_EQ(a.sequence, 0.2);
  EXPECT_EQ(a.z, 0.5);
  EXPECT_FALSE(a.hf);
  // "bias" has no coefficient and takes none.
  const AuxCoefficients b = aux_coefficients(
      make(kEverything,
           {"moe.score=\"sigmoid\"", "moe.load_balancing=[\"bias\",\"seq_aux\"]", "moe.aux_coef=[0.2]"}));
  EXPECT_EQ(b.sequence, 0.2);
  EXPECT_EQ(b.micro, 0);
  EXPECT_FALSE(aux_coefficients(make(kEverything, {"moe.load_balancing=[\"none\"]"})).any());
}

TEST(Decoder, CapacityRoundsUp) {
  EXPECT_EQ(expert_capacity(make(kEverything), 100), 0);
  // 100 tokens * 2 choices / 8 experts = 25.
  EXPECT_EQ(expert_capacity(make(kEverything, {"moe.capacity_factor=1.0"}), 100), 25);
  EXPECT_EQ(expert_capacity(make(kEverything, {"moe.capacity_factor=1.01"}), 100), 26);
}

TEST(Decoder, RoutedRowsFollowCapacity) {
  const auto rows = [](const std::vector<std::string>& more) {
    std::vector<std::string> sets = {"train.micro_batch=1", "train.seq_len=100"};
    sets.insert(sets.end(), more.begin(), more.end());
    const config::Config config = make(kEverything, sets);
    const auto table = make_parameters(config);
    program::Builder b("p");
    return declare(config, table, b, {Purpose::Train, 1}).routed_rows;
  };
  EXPECT_EQ(rows({}), 200);
  EXPECT_EQ(rows({"moe.capacity_factor=0.5"}), 8 * 13);
  EXPECT_EQ(rows({"moe.capacity_factor=2.0"}), 200) << "no more rows than choices";
  EXPECT_EQ(rows({"moe.capacity_factor=2.0", "moe.pad_to_capacity=true"}), 8 * 50);
}

TEST(Decoder, WeightDecayFollowsTheClass) {
  const auto decay_of = [](const std::vector<std::string>& sets) {
    const config::Config config = make(kEverything, sets);
    const auto table = make_parameters(config);
    program::Builder b("p");
    Decoder d = declare(config, table, b, {Purpose::Train, 1});
    forward(d, 0);
    backward(d, 0);
    update(d);
    const program::Program p = b.take();
    std::map<std::string, std::pair<double, double>> out;  // decay, lr_mult
    for (const program::Stage& s : p.stages) {
      if (s.op != program::Op::adamw) continue;
      auto& row = out[p.values[static_cast<size_t>(s.uses[5].value)].name];
      for (const program::Attr& a : p.attrs[static_cast<size_t>(s.attrs)]) {
        if (a.key == "weight_decay") row.first = a.number;
        if (a.key == "lr_mult") row.second = a.number;
      }
    }
    return out;
  };
  auto plain = decay_of({});
  EXPECT_EQ(plain.at("layers.0.attn.qkv.weight"), std::pair(0.1, 1.0));
  EXPECT_EQ(plain.at("layers.0.attn.qkv.bias").first, 0);
  EXPECT_EQ(plain.at("layers.0.attn.q_norm.weight").first, 0);
  EXPECT_EQ(plain.at("final_norm.weight").first, 0);
  EXPECT_EQ(plain.at("embedding.weight").first, 0.1);
  auto grouped = decay_of({"optimizer.groups.router.lr_mult=0.5", "optimizer.groups.experts.weight_decay=0.3",
                           "optimizer.decay_norms=true", "optimizer.decay_embeddings=false"});
  EXPECT_EQ(grouped.at("layers.1.router.weight"), std::pair(0.1, 0.5));
  EXPECT_EQ(grouped.at("layers.1.experts.up.weight"), std::pair(0.3, 1.0));
  EXPECT_EQ(grouped.at("final_norm.weight").first, 0.1);
  EXPECT_EQ(grouped.at("embedding.weight").first, 0);
}

}  // namespace
}  // namespace pleat::model
