// Pass low_precision: which products take codes, who makes them and how often, what is kept for the backward.
#include "schedule/pass/low_precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "interpret/print/print.h"
#include "program/turns.h"
#include "schedule/pass/pass.h"
#include "schedule/ranks.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;

config::Config with_recipe(const std::string& recipe, Words more = {}) {
  more.push_back("precision.recipe=\"" + recipe + "\"");
  return make_config(more);
}
// Dense and MoE layers with shared experts; latent attention.
const Words kEveryModule = {"model.leading_dense_layers=1", "model.ffn_hidden_size=48",
                            "model.attention=\"mla\"",      "model.kv_lora_rank=16",
                            "model.qk_nope_head_dim=8",     "model.qk_rope_head_dim=4",
                            "model.v_head_dim=8",           "model.q_lora_rank=16",
                            "model.num_kv_heads=",          "model.head_dim="};

Program coded(const config::Config& c) {
  return apply_passes(build_training_step(c, model::make_parameters(c)), c);
}

bool is_scaled(const Stage& s) {
  return kernel_of(s.op) == KernelKind::scaled_linear || kernel_of(s.op) == KernelKind::scaled_grouped_linear;
}
bool is_wide_product(const Stage& s) {
  return kernel_of(s.op) == KernelKind::linear || kernel_of(s.op) == KernelKind::grouped_linear;
}
template <class Is>
int64_t count(const Program& p, const Is& is) {
  return std::count_if(p.stages.begin(), p.stages.end(), is);
}
int64_t count(const Program& p, KernelKind kind) {
  return count(p, [&](const Stage& s) { return kernel_of(s.op) == kind; });
}

TEST(LowPrecision, EveryProductOfTheLayersTakesCodesAndNoOther) {
  for (const char* recipe : {"fp8", "mxfp8", "nvfp4"})
    for (const Words& model : {Words{}, kEveryModule}) {
      const config::Config c = with_recipe(recipe, model), wide = make_config(model);
      const Program p = coded(c), before = coded(wide);
      EXPECT_EQ(count(p, is_scaled),
                count(before, [](const Stage& s) { return s.layer >= 0 && is_wide_product(s); }));
      for (const Stage& s : p.stages) EXPECT_FALSE(s.layer >= 0 && is_wide_product(s)) << stage_name(s);
      EXPECT_EQ(count(p, is_wide_product),
                count(before, [](const Stage& s) { return s.layer < 0 && is_wide_product(s); }));
      EXPECT_EQ(interpret::parse(interpret::print(p)), p) << recipe;
      const Order order(p);
      EXPECT_TRUE(interpret::check_plan(p, interpret::plan(p, order), order).faults.empty());
    }
}

// Projections and heads of multi-token prediction belong to no module.
TEST(LowPrecision, LayersOfMultiTokenPredictionHaveCodesTheirProjectionsNot) {
  const Program p = coded(with_recipe("fp8", {"model.num_mtp_layers=1"}));
  bool any = false;
  for (const Stage& s : p.stages) {
    const bool is_of_mtp = name_of(s.op).starts_with("mtp_") || (s.op == Op::head && s.layer == 3);
    EXPECT_TRUE(s.layer < 0 || !is_wide_product(s) || is_of_mtp) << stage_name(s);
    any = any || (s.layer == 3 && is_scaled(s));
  }
  EXPECT_TRUE(any);
}

// What makes codes belongs to the forward or the backward it is made for: turns of a pipeline stay whole.
TEST(LowPrecision, TurnsStayWhole) {
  for (const Words& sets : {Words{"parallel.pp=2"}, Words{"parallel.pp=2", "parallel.vpp=2"},
                            Words{"parallel.pp=2", "parallel.vpp=2", "recompute.modules=[\"layer\"]"}})
    for (const char* recipe : {"fp8", "mxfp8"}) {
      Words all = sets;
      all.insert(all.end(), {"train.num_microbatches=4", "model.num_layers=4", "device.kind=\"cuda\"",
                             "model.dtype=\"bfloat16\""});
      const RankPrograms wide = build_ranks(make_config(all), 2),
                         few = build_ranks(with_recipe(recipe, all), 2);
      for (size_t i = 0; i < wide.programs.size(); ++i) {
        const auto list = [](const Program& p) {
          std::vector<std::tuple<int, int, bool>> out;
          for (const Turn& t : turns(p)) out.emplace_back(t.microbatch, t.chunk, t.forward);
          return out;
        };
        EXPECT_EQ(list(few.programs[i]), list(wide.programs[i])) << joined(all);
      }
    }
}

TEST(LowPrecision, AWeightIsCodedOnceAStepHoweverManyMicrobatches) {
  for (const char* microbatches : {"train.num_microbatches=1", "train.num_microbatches=4"}) {
    const Program p = coded(with_recipe("fp8", {microbatches}));
    std::map<ValueId, int> times;
    for (const Stage& s : p.stages)
      if (kernel_of(s.op) == KernelKind::quantize_weight) ++times[s.uses[0].value];
    // Query, output, up and down of experts and of shared ones, in three layers: as they are, and turned.
    EXPECT_EQ(times.size(), 3u * 6);
    for (const auto& [weight, n] : times) EXPECT_EQ(n, 2) << p.values[size_t(weight)].name;
  }
}

TEST(LowPrecision, NoNumberIsCodedTwiceAndColumnsComeAsTheRecipeSays) {
  for (const char* recipe : {"fp8", "mxfp8"}) {
    const Program p = coded(with_recipe(recipe));
    std::map<ValueId, int> quantized;
    for (const Stage& s : p.stages)
      if (kernel_of(s.op) == KernelKind::quantize) ++quantized[s.uses[0].value];
    for (const auto& [value, n] : quantized) EXPECT_EQ(n, 1) << p.values[size_t(value)].name;
    // Both sides of every gradient of a weight.
    const int64_t gradients =
        count(p, [](const Stage& s) { return is_scaled(s) && s.phase == Phase::BackwardWeight; });
    EXPECT_EQ(count(p, KernelKind::turn_codes), std::string(recipe) == "fp8" ? 2 * gradients : 0);
  }
}

// What products keep for their backward are codes: a value that only products read is read by none behind the forward.
TEST(LowPrecision, TheBackwardKeepsCodesInPlaceOfNumbers) {
  // Long enough that what experts leave free in their blocks is little.
  const Words sizes = {"train.num_microbatches=1", "train.seq_len=2048"};
  const Program wide = coded(make_config(sizes));
  for (const char* recipe : {"fp8", "mxfp8", "nvfp4"}) {
    const Program p = coded(with_recipe(recipe, sizes));
    for (const char* name : {"mb0.L1.attn_normed", "mb0.L1.expert_rows", "mb0.L1.expert_activated"}) {
      const ValueId v = value_named(p, name);
      for (const Stage& s : p.stages)
        for (const Use& use : s.uses)
          EXPECT_TRUE(use.value != v || s.phase == Phase::Forward) << stage_name(s);
    }
    EXPECT_LT(interpret::plan(p).at_peak[size_t(Owner::Activations)],
              interpret::plan(wide).at_peak[size_t(Owner::Activations)])
        << recipe;
  }
}

TEST(LowPrecision, ModulesAndEndsThatStayWide) {
  const auto layers_of = [](const Program& p, std::string_view what) {
    std::set<int> out;
    for (const Stage& s : p.stages)
      if (is_scaled(s) && name_of(s.op).starts_with(what)) out.insert(s.layer);
    return out;
  };
  const Program experts = coded(with_recipe("fp8", {"precision.modules=[\"experts\"]"}));
  EXPECT_EQ(layers_of(experts, "expert_"), (std::set<int>{0, 1, 2}));
  EXPECT_EQ(layers_of(experts, "qkv"), std::set<int>{});
  EXPECT_EQ(layers_of(experts, "shared_"), std::set<int>{});
  const Program ends = coded(with_recipe("fp8", {"precision.wide_first=1", "precision.wide_last=1"}));
  EXPECT_EQ(layers_of(ends, "expert_"), std::set<int>{1});
  EXPECT_EQ(layers_of(ends, "qkv"), std::set<int>{1});
}

// What is computed again is coded again, behind it.
TEST(LowPrecision, GoesWithRecompute) {
  for (const char* recipe : {"fp8", "nvfp4"})
    for (const char* modules : {"[\"norm\"]", "[\"experts\"]", "[\"layer\"]"}) {
      const Program p = coded(with_recipe(recipe, {std::string("recompute.modules=") + modules}));
      EXPECT_GT(
          count(p, [](const Stage& s) { return kernel_of(s.op) == KernelKind::quantize && s.replay > 0; }),
          0);
      EXPECT_EQ(count(p, [](const Stage& s) { return s.layer >= 0 && is_wide_product(s); }), 0);
    }
}

TEST(LowPrecision, EveryLayoutRunsTogether) {
  for (const Words& layout : {Words{"parallel.tp=2"}, Words{"parallel.ep=2"}, Words{"parallel.pp=2"},
                              Words{"parallel.cp=2"}, Words{"parallel.tp=2", "parallel.ep=2"}})
    for (const char* device : {"cpu", "cuda"}) {
      Words sets = layout;
      sets.insert(sets.end(), {"train.num_microbatches=4", "model.num_layers=4"});
      if (std::string(device) == "cuda")
        sets.insert(sets.end(), {"device.kind=\"cuda\"", "model.dtype=\"bfloat16\""});
      const config::Config c = with_recipe("fp8", sets);
      const RankPrograms ranks = build_ranks(c, layout.size() > 1 ? 4 : 2);
      for (const Program& p : ranks.programs) EXPECT_GT(count(p, is_scaled), 0) << joined(sets);
      EXPECT_NO_THROW(interpret::network_of_roles(ranks.programs));
    }
}

TEST(LowPrecision, WhatCannotBeIsRefusedByName) {
  const auto refused = [](const std::string& recipe, const Words& sets) {
    return pleat::testing::message_of([&] { with_recipe(recipe, sets); });
  };
  EXPECT_NE(refused("fp8", {"model.qkv_bias=true"}).find("model.qkv_bias"), std::string::npos);
  EXPECT_EQ(refused("fp8", {"model.qkv_bias=true", "precision.modules=[\"experts\"]"}), "");
  EXPECT_NE(refused("fp8", {"precision.modules=[\"latent\"]"}).find("mla"), std::string::npos);
  EXPECT_NE(refused("fp8", {"precision.modules=[\"mlp\"]"}).find("a dense layer"), std::string::npos);
  EXPECT_NE(refused("fp8", {"precision.wide_first=2", "precision.wide_last=1"}).find("leave no layer"),
            std::string::npos);
  EXPECT_NE(refused("bf16", {}).find("fp8"), std::string::npos);
  EXPECT_NE(pleat::testing::refusal([] { make_config({"precision.wide_first=1"}); }).find("precision.recipe"),
            std::string::npos);
}

}  // namespace
}  // namespace pleat::schedule
