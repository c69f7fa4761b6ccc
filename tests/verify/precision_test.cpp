// Layouts against one rank in bfloat16 (rounded on the CPU) and float32, the experts of every token given by one
// rank: every difference is inside its bound, the bounds are tight, and planted faults are far outside.
#include "verify/precision.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "layout/from_config.h"
#include "schedule/ranks.h"
#include "support/small_models.h"
#include "tensor/bf16.h"
#include "verify/shrink.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

using Words = std::vector<std::string>;

struct PreciseCase {
  const char* name;
  int ranks;
  Words sets;
};

const std::vector<PreciseCase>& precise_cases() {
  static const std::vector<PreciseCase> all = {
      {"EP2", 2, {"parallel.ep=2"}},
      {"EP2 allgather", 2, {"parallel.ep=2", "parallel.dispatcher=\"allgather\""}},
      {"EP2, rerun", 2, {"parallel.ep=2", "moe.token_budget=1.05", "moe.overflow=\"rerun\""}},
      {"EP2, budget", 2, {"parallel.ep=2", "moe.token_budget=1.05"}},
      {"TP2", 2, {"parallel.tp=2"}},
      {"CP2 allgather", 2, {"parallel.cp=2"}},
      {"CP2 alltoall", 2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
      {"CP2 ring", 2, {"parallel.cp=2", "parallel.context=\"ring\""}},
      {"PP2", 2, {"parallel.pp=2"}},
      {"EP2 x TP2", 4, {"parallel.ep=2", "parallel.tp=2"}},
  };
  return all;
}

const Words kGroupedQuery = {"model.num_kv_heads=4", "model.head_dim=8", "model.qk_norm=true"};
const Words kLatentQuery = {"model.attention=\"mla\"",  "model.q_lora_rank=16",
                            "model.kv_lora_rank=16",    "model.qk_nope_head_dim=8",
                            "model.qk_rope_head_dim=8", "model.v_head_dim=8",
                            "moe.score=\"sigmoid\"",    "moe.load_balancing=[\"bias\",\"seq_aux\"]",
                            "moe.aux_coef=[0.01]"};

config::Config precise_model(Words sets, const Words& layout = {}) {
  static const std::string model = testing::kLayoutModel + R"(
model.vocab_size = 64
model.num_layers = 2
model.ffn_hidden_size = 32
model.init_std = 0.05
optimizer.lr = 1e-3
optimizer.clip = 0.3
)";
  sets.insert(sets.end(), layout.begin(), layout.end());
  return config::resolve(config::parse(model, sets, "precision.toml"));
}

constexpr PrecisionOptions kBfloat16 = {.narrow = true};

// Models with their one rank, made once.
class PreciseModel {
 public:
  PreciseModel(const Words& sets, const PrecisionOptions& options)
      : sets_(sets), one_(precise_model(sets), options) {}

  PrecisionReport verify(const PreciseCase& layout, Fault fault = Fault::None) const {
    const config::Config c = precise_model(sets_, layout.sets);
    const model::Mesh mesh = schedule::fitted_mesh(c, layout::Layout(layout::sizes_of(c, layout.ranks)));
    return one_.verify(c, mesh, mesh.pp > 1 ? schedule::roles_of(c) : std::vector<model::Role>(), fault);
  }

 private:
  Words sets_;
  OneRank one_;
};

const PreciseModel& grouped_query() {
  static const PreciseModel model(kGroupedQuery, kBfloat16);
  return model;
}
const PreciseModel& latent_query() {
  static const PreciseModel model(kLatentQuery, kBfloat16);
  return model;
}

const PreciseCase& precise_case(std::string_view name) {
  for (const PreciseCase& c : precise_cases())
    if (c.name == name) return c;
  base::fail("no case {}", name);
}

const PrecisionRow& row_of(const PrecisionReport& report, std::string_view what) {
  for (const PrecisionRow& r : report.rows)
    if (r.what == what) return r;
  base::fail("no row {}", what);
}

void expect_inside(const PrecisionReport& report) {
  EXPECT_EQ(report.verdict, "");
  EXPECT_GE(report.rows.size(), 15u);
  for (const PrecisionRow& r : report.rows) {
    // Tight: some tens of roundings; what follows from gradients is float32, relative to a way of 1e-3. Weights that
    // are apart come on top: a rounding whose sign AdamW turned into a step, and which BLAS decides whether there is one.
    EXPECT_LT(r.bound - r.moved, r.noise > 0 ? 48 * report.unit : 1e-3) << r.what << " " << r.worst;
    EXPECT_LT(r.moved, std::max(48 * report.unit, 1e-4)) << r.what << " " << r.worst;
    EXPECT_GT(r.bound, 0) << r.what;
  }
}

TEST(Precision, Bfloat16GroupedQuery) {
  for (const PreciseCase& c : precise_cases()) {
    SCOPED_TRACE(c.name);
    expect_inside(grouped_query().verify(c));
  }
}

TEST(Precision, Bfloat16Latent) {
  for (const PreciseCase& c : precise_cases()) {
    SCOPED_TRACE(c.name);
    expect_inside(latent_query().verify(c));
  }
}

TEST(Precision, Float32) {
  const PreciseModel float32(kGroupedQuery, {});
  for (const char* name : {"TP2", "CP2 ring", "EP2 x TP2"}) {
    SCOPED_TRACE(name);
    expect_inside(float32.verify(precise_case(name)));
  }
}

// A class whose gradients are rounded once a microbatch: its noise grows, the layout stays inside it, and gradients of
// others are as far from float64 as before.
TEST(Precision, GradientsOfExpertsInBfloat16) {
  const PreciseCase& layout = precise_case("EP2 x TP2");
  config::Config c = precise_model(kGroupedQuery, layout.sets), alone = precise_model(kGroupedQuery);
  for (config::Config* each : {&c, &alone}) each->optimizer.groups["experts"].grad_dtype = "bfloat16";
  const OneRank one(alone, kBfloat16);
  const PrecisionReport report = one.verify(
      c, schedule::fitted_mesh(c, layout::Layout(layout::sizes_of(c, layout.ranks))), {}, Fault::None);
  expect_inside(report);
  const PrecisionReport wide = grouped_query().verify(layout);
  EXPECT_GT(row_of(report, "gradients of experts").noise, 1.02 * row_of(wide, "gradients of experts").noise);
  EXPECT_LT(row_of(report, "gradients of attention").noise,
            1.02 * row_of(wide, "gradients of attention").noise);
}

// A pipeline only moves work: in bfloat16 as in float64 it changes no bit.
TEST(Precision, APipelineChangesNothing) {
  const PrecisionReport report = grouped_query().verify(precise_case("PP2"));
  for (const PrecisionRow& r : report.rows) {
    if (r.noise == 0) continue;
    EXPECT_EQ(r.difference, 0) << r.what;
  }
}

TEST(Precision, ABudgetIsRaisedToWhatOneRankChose) {
  EXPECT_NE(grouped_query().verify(precise_case("EP2, budget")).budget, "");
  EXPECT_EQ(grouped_query().verify(precise_case("EP2, rerun")).budget, "");
}

TEST(Precision, OneExpertsLostReductionIsFound) {
  for (const char* name : {"TP2", "CP2 ring", "EP2 x TP2"})
    for (const PreciseModel* model : {&grouped_query(), &latent_query()}) {
      SCOPED_TRACE(name);
      const PrecisionReport report = model->verify(precise_case(name), Fault::DropExpert);
      const PrecisionRow& experts = row_of(report, "gradients of experts");
      EXPECT_GT(experts.difference, 8 * experts.bound) << experts.worst;
      EXPECT_NE(report.verdict.find("gradients of experts differ"), std::string::npos) << report.verdict;
    }
}

TEST(Precision, AnExpertWithoutReplicasHasNoReductionToLose) {
  EXPECT_THROW(grouped_query().verify(precise_case("EP2"), Fault::DropExpert), base::Error);
}

TEST(Precision, OtherFaultsAreFoundWhereTheyAre) {
  const PreciseCase& layout = precise_case("EP2 x TP2");
  const auto is_outside = [&](Fault fault, const char* what, double times) {
    const PrecisionRow row = row_of(grouped_query().verify(layout, fault), what);
    EXPECT_GT(row.difference, times * row.bound) << what << " " << row.worst;
  };
  is_outside(Fault::ScaleExpertGradients, "gradients of experts", 8);
  is_outside(Fault::DropReduction, "gradients of embedding", 8);
  is_outside(Fault::SkipNorm, "gradient norm, of its gradients", 8);
}

// What stands for bfloat16 on the CPU: nothing that would be stored so is anything else.
TEST(Precision, RoundedValuesAreBfloat16) {
  RunOptions options;
  options.num_steps = 1;
  options.taps = {"x_out", "x_mid", "dx_mid", "router_logits"};
  const config::Config c = precise_model(kGroupedQuery);
  int64_t wider = 0;
  for (const bool narrow : {false, true}) {
    options.narrow = narrow;
    const LayoutRun run = run_on(c, mesh_of({.tp = 2}), options);
    for (const auto& [name, x] : run.steps[0].taps)
      for (const double value : x) {
        const float f = static_cast<float>(value);
        const bool is_narrow = tensor::widened(tensor::narrowed(f)) == f;
        if (name.ends_with("router_logits") || !narrow)
          wider += !is_narrow;
        else
          EXPECT_TRUE(is_narrow) << name;
      }
    EXPECT_GT(wider, 100);
    wider = 0;
  }
}

// The small copy of configs/tiny.toml, as verify-layout compares it.
PrecisionReport tiny_report(int ranks, Words sets, Fault fault = Fault::None) {
  const config::Config asked = config::load(std::string(PLEAT_SOURCE_DIR) + "/configs/tiny.toml", sets);
  const model::Mesh mesh =
      schedule::fitted_mesh(config::resolve(asked), layout::Layout(layout::sizes_of(asked, ranks)));
  const Shrunk small = shrink(asked, mesh, SmallCopy::Asked);
  return OneRank(small.config, {}, mesh).verify(small.config, mesh, small.roles, fault);
}

TEST(Precision, AGradientThatHardlyDependsOnWeightsWasAllowedLessThanOneRounding) {
  for (int seed = 1; seed <= 6; ++seed) {
    const PrecisionReport report = tiny_report(
        2, {"moe.router_bias=true", "moe.force_routing=\"skewed\"", "moe.force_bias_std=1.0",
            "train.num_microbatches=12", "model.num_mtp_layers=3", fmt::format("train.seed={}", seed)});
    EXPECT_EQ(report.verdict, "") << "seed " << seed;
    EXPECT_LT(std::max(report.alone.gradient_share, report.alone.later_share), 0.5);
  }
}

TEST(Precision, TwoNumbersWereHeldToANoiseThatWasSmallByLuck) {
  const Words sets = {"model.attention_sinks=true",
                      "model.tie_embeddings=true",
                      "model.num_mtp_layers=3",
                      "moe.shared_ffn_hidden_size=0",
                      "moe.aux_coef=[0.0]",
                      "moe.score=\"sqrtsoftplus\"",
                      "parallel.cp=4",
                      "parallel.ep=2",
                      "parallel.etp=2",
                      "parallel.context=\"ring\"",
                      "train.micro_batch=1",
                      "train.num_microbatches=4"};
  const PrecisionReport report = tiny_report(4, sets);
  EXPECT_EQ(report.verdict, "");
  const PrecisionRow& attention = row_of(report, "gradients of attention");
  EXPECT_LT(attention.bound, 256 * report.unit) << attention.worst;
  // What is wrong stays far outside.
  const PrecisionReport lost = tiny_report(4, sets, Fault::DropReduction);
  EXPECT_NE(lost.verdict, "");
}

TEST(Precision, TokensKeptByProbabilityAreRefused) {
  Words sets = kGroupedQuery;
  sets.insert(sets.end(), {"moe.capacity_factor=1.0", "moe.drop_policy=\"probs\""});
  EXPECT_THROW(OneRank(precise_model(sets), kBfloat16, mesh_of({.tp = 2})), base::Error);
}

}  // namespace
}  // namespace pleat::verify
