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
#include "program/code_rows.h"
#include "program/signature.h"
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

bool has(const Program& p, const std::string& name) {
  return std::any_of(p.values.begin(), p.values.end(), [&](const Value& v) { return v.name == name; });
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
    // By each class of products, that is: experts have codes of tokens of their own.
    std::map<std::pair<ValueId, Op>, int> quantized;
    for (const Stage& s : p.stages)
      if (kernel_of(s.op) == KernelKind::quantize) ++quantized[{s.uses[0].value, s.op}];
    for (const auto& [value, n] : quantized) EXPECT_EQ(n, 1) << p.values[size_t(value.first)].name;
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
      if (!has(p, name)) continue;
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

// What formats say: codes, a scale for every block of 128, in column codes room for every expert.
int64_t row_bytes(const Value& v) {
  const int64_t rows = v.shape[0], n = v.shape[1];
  return padded(rows * n) + padded(rows * ((n + 127) / 128) * 4);
}
int64_t column_bytes(const Value& v, int64_t experts) {
  const int64_t rows = v.shape[0], n = v.shape[1], room = (rows + experts * 127 + 127) / 128 * 128;
  return padded(room * n) + padded(room / 128 * n * 4);
}
int64_t weight_bytes(const Value& v) {
  const size_t rank = v.shape.size();
  const int64_t matrices = rank == 3 ? v.shape[0] : 1, out = v.shape[rank - 2], in = v.shape[rank - 1];
  return padded(matrices * out * in) + padded(matrices * ((out + 127) / 128) * ((in + 127) / 128) * 4);
}
const int64_t kCounterBytes = padded(kNumCodeRows * kNumCodeCounts * 8) + padded(kNumCodeRows * 8);

// What products of the layers take, read off the program without codes.
struct Taken {
  std::set<ValueId> by_rows, kept, weights;  // kept: what the gradient of a weight takes of the forward
  std::map<ValueId, int64_t> by_columns;     // with experts
};
Taken taken(const Program& wide) {
  namespace signature = program::signature;
  Taken out;
  for (const Stage& s : wide.stages) {
    if (s.layer < 0 || !is_wide_product(s)) continue;
    const bool grouped = kernel_of(s.op) == KernelKind::grouped_linear;
    if (s.phase != Phase::BackwardWeight) {
      out.by_rows.insert(s.uses[0].value);
      out.weights.insert(s.uses[1].value);
    } else {
      const int64_t experts =
          grouped ? wide.values[size_t(signature::grouped_linear::BackwardWeight<Use>(s.uses).offsets.value)]
                            .shape[0] -
                        1
                  : 0;
      for (const int side : {0, 1}) out.by_columns[s.uses[size_t(side)].value] = experts;
      out.kept.insert(s.uses[1].value);
    }
  }
  return out;
}
bool read_in_backward_by_others(const Program& wide, ValueId v) {
  return std::any_of(wide.stages.begin(), wide.stages.end(), [&](const Stage& s) {
    return s.phase != Phase::Forward && !(s.layer >= 0 && is_wide_product(s)) &&
           std::any_of(s.uses.begin(), s.uses.end(), [&](const Use& u) { return u.value == v; });
  });
}

// Every byte that values of the step have more or less, from formats alone.
TEST(LowPrecision, WhatValuesTakeFollowsFromFormats) {
  for (const Words& sets :
       {Words{}, Words{"train.seq_len=300", "model.leading_dense_layers=1", "model.ffn_hidden_size=160"}}) {
    const Program wide = coded(make_config(sets)), few = coded(with_recipe("fp8", sets));
    const Taken t = taken(wide);
    int64_t activations = 0, weights = 0;
    for (const ValueId v : t.by_rows) activations += row_bytes(wide.values[size_t(v)]);
    for (const auto& [v, experts] : t.by_columns)
      activations += column_bytes(wide.values[size_t(v)], experts);
    for (const ValueId v : t.weights) weights += 2 * weight_bytes(wide.values[size_t(v)]);  // and turned
    // Tokens are coded in place of the rows that are copies of them.
    for (const Stage& s : wide.stages) {
      if (s.op != Op::permute && s.op != Op::combine) continue;
      if ((s.op == Op::permute) != (s.phase == Phase::Forward)) continue;
      const ValueId tokens = s.uses[0].value, rows = s.uses[s.op == Op::permute ? 6 : 4].value;
      activations += row_bytes(wide.values[size_t(tokens)]) - padded(num_bytes(wide.values[size_t(rows)]));
    }
    const interpret::Plan before = interpret::plan(wide), after = interpret::plan(few);
    const auto more = [&](Owner owner) { return after.total[size_t(owner)] - before.total[size_t(owner)]; };
    EXPECT_EQ(more(Owner::Activations), activations) << joined(sets);
    EXPECT_EQ(more(Owner::Weights), weights);
    EXPECT_EQ(more(Owner::Results), kCounterBytes);
    EXPECT_EQ(more(Owner::Gradients), 0);
    EXPECT_EQ(more(Owner::Routing), 0);
  }
}

// Between forward and backward lies what the backward needs: codes in place of numbers where nothing else reads these,
// beside them where something does; and the codes of weights that a later microbatch takes.
TEST(LowPrecision, WhatIsKeptForTheBackwardFollowsFromFormats) {
  const Words sets = {"train.num_microbatches=2", "train.seq_len=300"};
  const Program wide = coded(make_config(sets)), few = coded(with_recipe("fp8", sets));
  const Taken t = taken(wide);
  int64_t weights = 0;
  for (const ValueId v : t.weights) weights += weight_bytes(wide.values[size_t(v)]);
  const interpret::Plan before = interpret::plan(wide), after = interpret::plan(few);
  const auto live = [](const Program& p, const interpret::Plan& plan, const std::string& name) {
    for (size_t s = 0; s < p.stages.size(); ++s)
      if (stage_name(p.stages[s]) == name) return plan.live[s];
    ADD_FAILURE() << "no stage " << name;
    return int64_t{0};
  };
  for (const int mb : {0, 1}) {
    int64_t kept = 0, freed = 0;
    for (const ValueId v : t.kept) {
      const Value& value = wide.values[size_t(v)];
      if (value.microbatch != mb) continue;
      kept += row_bytes(value);
      if (!read_in_backward_by_others(wide, v)) freed += padded(num_bytes(value));
    }
    EXPECT_GT(freed, kept);
    const std::string at = "fwd mb" + std::to_string(mb) + " final_norm";
    EXPECT_EQ(live(few, after, at) - live(wide, before, at), kept - freed + weights + kCounterBytes) << at;
  }
}

// A code is a number with its own scale alone: a scale of other codes of the same shape is found wherever it is read.
TEST(LowPrecision, CheckFindsAScaleOfOtherCodes) {
  const auto faults = [](const Program& p) { return interpret::check(p).faults; };
  for (const Words& sets : {Words{}, Words{"device.kind=\"cuda\"", "model.dtype=\"bfloat16\"",
                                           "offload.modules=[\"qkv\"]", "offload.min_bytes=0"}}) {
    const Program p = coded(with_recipe("fp8", sets));
    ASSERT_TRUE(faults(p).empty());
    int planted = 0;
    for (size_t s = 0; s < p.stages.size(); ++s)
      for (size_t i = 1; i < p.stages[s].uses.size(); ++i) {
        const ValueId own = p.stages[s].uses[i].value;
        const auto& arguments = arguments_of(p.stages[s].op, p.stages[s].phase);
        if (own == kNoValue || p.stages[s].uses[i].access != Access::Read ||
            !argument_of(arguments, p.stages[s].uses.size(), i).scale)
          continue;
        // One of the same shape that was written before.
        const Value& v = p.values[size_t(own)];
        ValueId other = kNoValue;
        for (size_t before = 0; before < s && other == kNoValue; ++before)
          for (const Use& u : p.stages[before].uses)
            if (u.value != kNoValue && u.value != own && u.access == Access::Write &&
                p.values[size_t(u.value)].scale_of != kNoValue &&
                p.values[size_t(u.value)].shape == v.shape &&
                p.values[size_t(u.value)].scale_of != v.scale_of)
              other = u.value;
        if (other == kNoValue) continue;
        Program wrong = p;
        wrong.stages[s].uses[i].value = other;
        const auto found = faults(wrong);
        ASSERT_FALSE(found.empty()) << stage_name(p.stages[s]) << " " << i;
        EXPECT_NE(found[0].find(stage_name(p.stages[s])), std::string::npos) << found[0];
        ++planted;
        if (planted % 8 == 0) s += 16;  // some of every kind
      }
    EXPECT_GT(planted, 20);
  }
}

TEST(LowPrecision, CheckFindsScalesOfNothingAndCodesWithoutScales) {
  Program p = coded(with_recipe("fp8"));
  const ValueId scale = value_named(p, "mb0.L1.attn_normed.codes_scale");
  p.values[size_t(scale)].scale_of = kNoValue;
  const auto faults = interpret::check(p).faults;
  ASSERT_FALSE(faults.empty());
  EXPECT_NE(faults[0].find("has the scales of no codes, not of 'mb0.L1.attn_normed.codes'"),
            std::string::npos)
      << faults[0];
}

// Rows of experts are copies of tokens: these are coded, and nobody has the rows as numbers.
TEST(LowPrecision, TokensAreCodedOnceAndTheirCodesCopied) {
  const Program p = coded(with_recipe("fp8"));
  for (const char* rows : {"mb0.L1.expert_rows", "mb0.L1.d_expert_out"}) EXPECT_FALSE(has(p, rows)) << rows;
  const int64_t layers = 3, microbatches = 2;
  EXPECT_EQ(count(p, KernelKind::permute_codes), 2 * layers * microbatches);
  for (const Stage& s : p.stages)
    EXPECT_TRUE(s.op != Op::permute || s.phase != Phase::Forward) << stage_name(s);
  // Where other ranks send them, rows are coded as they come; so where the recipe makes columns of numbers.
  const RankPrograms ranks = build_ranks(with_recipe("fp8", {"parallel.ep=2"}), 2);
  EXPECT_EQ(count(ranks.programs[0], KernelKind::permute_codes), 0);
  EXPECT_EQ(count(coded(with_recipe("mxfp8")), KernelKind::permute_codes), 0);
  // Experts stay wide: rows are numbers.
  EXPECT_EQ(
      count(coded(with_recipe("fp8", {"precision.modules=[\"attention\"]"})), KernelKind::permute_codes), 0);
}

// Counters: every number that becomes a code once, nothing that is computed again, and none where no recipe is set.
TEST(LowPrecision, StagesThatMakeCodesCount) {
  for (const char* recompute :
       {"recompute.modules=[]", "recompute.modules=[\"norm\"]", "recompute.modules=[\"layer\"]"}) {
    const Program p = coded(with_recipe("fp8", {recompute}));
    for (const Stage& s : p.stages) {
      const bool codes = kernel_of(s.op) == KernelKind::quantize ||
                         (kernel_of(s.op) == KernelKind::quantize_weight && s.phase == Phase::Forward);
      if (!codes) continue;
      const ValueId counts = s.uses[s.uses.size() - 2].value, largest = s.uses.back().value;
      EXPECT_EQ(counts != kNoValue, s.replay == 0) << stage_name(s);
      EXPECT_EQ(largest != kNoValue, s.replay == 0) << stage_name(s);
    }
  }
  EXPECT_FALSE(has(coded(make_config()), "code_counts"));
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
