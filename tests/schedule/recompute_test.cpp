// Recompute: what it frees, to the byte; what it rebuilds, where; what it never touches.
#include "schedule/pass/recompute.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/checked.h"
#include "base/error.h"
#include "cost/flops.h"
#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;

const Words kModules = {"norm", "activation", "core_attention", "experts", "shared_experts", "layer"};

// A vocabulary so large that the peak is where the logits are, between forward and backward.
config::Config peak_at_loss(const Words& more = {}) {
  Words sets = {"model.vocab_size=20000",  "train.loss_chunk=48", "train.num_microbatches=1",
                "moe.shared_gate=true",    "model.qk_norm=true",  "model.leading_dense_layers=1",
                "model.ffn_hidden_size=48"};
  sets.insert(sets.end(), more.begin(), more.end());
  return make_config(sets);
}

Words subset(unsigned mask) {
  Words out;
  for (size_t i = 0; i < kModules.size(); ++i)
    if (mask >> i & 1) out.push_back(kModules[i]);
  return out;
}

// Bytes a module keeps in one layer between forward and backward, written down from the shapes of the model:
// T tokens, R routed rows. `kept` is what has to stay only because the rebuilding reads it.
struct Sizes {
  int64_t T = 48, h = 32, d = 8, H = 4, G = 2, R = 96, k = 2, f = 24, shared = 40, dense = 48;
  int64_t floats(int64_t n) const { return padded(4 * n); }

  int64_t norm() const { return 2 * (floats(T * h) + floats(T)); }
  int64_t activation(bool moe) const { return floats(moe ? R * f : T * dense); }
  int64_t core_attention() const { return floats(T * H * d) + floats(T * H); }
  int64_t experts() const { return floats(R * h) + floats(R) + floats(R * 2 * f) + floats(R * f); }
  int64_t shared_experts() const { return floats(T * 2 * shared) + floats(T * shared) + floats(T * h); }
  int64_t layer(bool moe) const {
    const int64_t attention =
        floats(T * (H + 2 * G) * d) * 2 + floats(T * (H + G)) + core_attention() + floats(T * h);
    return norm() + attention +
           (moe ? experts() + shared_experts() : floats(T * 2 * dense) + floats(T * dense));
  }
  int64_t kept_for_permute() const {
    return floats(T * k) + floats(R);
  }  // probabilities and slots of the rows
};

int64_t predicted(const std::string& module) {
  const Sizes s;
  if (module == "norm") return 3 * s.norm();
  if (module == "activation") return s.activation(false) + 2 * s.activation(true);
  if (module == "core_attention") return 3 * s.core_attention();
  if (module == "experts") return 2 * (s.experts() - s.kept_for_permute());
  if (module == "shared_experts") return 2 * s.shared_experts();
  return s.layer(false) + 2 * (s.layer(true) - s.kept_for_permute());
}

TEST(Recompute, FreesThePredictedBytesAtThePeak) {
  const Program plain = train_program(peak_at_loss());
  const interpret::Plan before = interpret::plan(plain);
  const std::string peak = stage_name(plain.stages[static_cast<size_t>(before.peak_stage)]);
  EXPECT_TRUE(peak.find(" head") != std::string::npos || peak.find(" loss") != std::string::npos) << peak;
  for (const std::string& module : kModules) {
    const Program again = recompute(plain, {{module}, {}});
    const interpret::Plan after = interpret::plan(again);
    EXPECT_EQ(stage_name(again.stages[static_cast<size_t>(after.peak_stage)]), peak) << module;
    EXPECT_EQ(before.live_peak_bytes - after.live_peak_bytes, predicted(module)) << module;
    EXPECT_LE(after.arena_bytes, before.arena_bytes) << module;
  }
}

// Values alive at the peak only because something behind it reads them.
std::set<std::string> kept(const Program& p, StageId at) {
  const Order order(p);
  const interpret::Lifetimes lives(p, order);
  std::set<std::string> out;
  for (size_t i = 0; i < p.values.size(); ++i) {
    const Value& v = p.values[i];
    if (v.view_of == kNoValue && v.life == Life::Step && lives[i].used && lives[i].first_in_list < at &&
        lives[i].last_in_list > at)
      out.insert(v.name);
  }
  return out;
}

TEST(Recompute, CombinationsFreeTheUnionOfTheirValues) {
  const Program plain = train_program(peak_at_loss());
  const interpret::Plan before = interpret::plan(plain);
  const auto kept_before = kept(plain, before.peak_stage);
  std::map<std::string, int64_t> bytes;
  for (const Value& v : plain.values) bytes[v.name] = padded(num_bytes(v));
  for (unsigned mask = 1; mask < 64; ++mask) {
    const Words modules = subset(mask);
    SCOPED_TRACE(joined(modules));
    const Program again = recompute(plain, {modules, {}});
    const interpret::Plan after = interpret::plan(again);
    const auto kept_after = kept(again, after.peak_stage);
    std::set<ValueId> freed;
    for (const std::string& module : modules)
      for (ValueId v : freed_by(plain, module, {})) freed.insert(v);
    int64_t expected = 0;
    for (ValueId v : freed) {
      const Value& value = plain.values[static_cast<size_t>(v)];
      EXPECT_TRUE(kept_before.contains(value.name)) << value.name;
      EXPECT_FALSE(kept_after.contains(value.name)) << value.name << " is still alive at the loss";
      expected += padded(num_bytes(value));
    }
    for (const std::string& name : kept_after) {
      EXPECT_FALSE(name.ends_with(".again")) << name << " is rebuilt before the loss";
      if (!kept_before.contains(name)) expected -= bytes.at(name);
    }
    ASSERT_EQ(before.peak_stage >= 0 ? before.live_peak_bytes - after.live_peak_bytes : -1, expected);
  }
}

TEST(Recompute, OnlyTheChosenLayers) {
  const Program plain = train_program(peak_at_loss());
  const interpret::Plan before = interpret::plan(plain);
  const Program again = recompute(plain, {{"activation"}, {false, true, false}});
  EXPECT_EQ(before.live_peak_bytes - interpret::plan(again).live_peak_bytes, Sizes().activation(true));
  int replays = 0;
  for (const Stage& s : again.stages) {
    if (!s.replay) continue;
    EXPECT_EQ(stage_name(s), "fwd mb0 L1 expert_act (replay)");
    ++replays;
  }
  EXPECT_EQ(replays, 1);
}

// Without the replays, and with every ".again" read as its original, the program is the one that went in.
void expect_same_but_rebuilt(const Program& plain, const Program& again) {
  ASSERT_GE(again.values.size(), plain.values.size());
  std::vector<ValueId> original(again.values.size());
  for (size_t i = 0; i < again.values.size(); ++i) {
    original[i] = static_cast<ValueId>(i);
    if (i < plain.values.size()) {
      ASSERT_TRUE(again.values[i] == plain.values[i]);
      continue;
    }
    std::string name = again.values[i].name;
    ASSERT_TRUE(name.ends_with(".again")) << name;
    name.resize(name.size() - 6);
    original[i] = value_named(plain, name);
    Value copy = again.values[i];
    copy.name = name;
    ASSERT_TRUE(copy == plain.values[static_cast<size_t>(original[i])]);
  }
  std::map<std::string, const Stage*> forward;
  for (const Stage& s : plain.stages) forward[stage_name(s)] = &s;
  std::vector<bool> built(again.values.size(), false);
  size_t next = 0;
  for (const Stage& s : again.stages) {
    Stage as_before = s;
    as_before.replay = 0;
    for (Use& use : as_before.uses) {
      if (use.value == kNoValue) continue;
      const size_t v = static_cast<size_t>(use.value);
      if (v >= plain.values.size()) {
        if (use.access == Access::Read) {
          EXPECT_TRUE(built[v]) << stage_name(s) << " reads " << again.values[v].name << " too early";
        }
        if (use.access != Access::Read) {
          EXPECT_TRUE(s.replay && !built[v]) << stage_name(s);
          built[v] = true;
        }
      } else if (s.replay) {
        EXPECT_EQ(use.access, Access::Read) << stage_name(s) << " writes what is not its own";
      }
      use.value = original[v];
    }
    if (s.replay) {
      EXPECT_EQ(s.phase, Phase::Forward);
      EXPECT_FALSE(in_module(s.op, "decision")) << stage_name(s);
      const auto found = forward.find(stage_name(as_before));
      ASSERT_NE(found, forward.end());
      EXPECT_TRUE(as_before == *found->second) << stage_name(s) << " is not the same call";
    } else {
      ASSERT_LT(next, plain.stages.size());
      EXPECT_TRUE(as_before == plain.stages[next]) << stage_name(s);
      ++next;
    }
  }
  EXPECT_EQ(next, plain.stages.size());
}

TEST(Recompute, AllCombinationsBuildCheckAndPlan) {
  for (const Words& sets :
       {Words{"moe.input_jitter=0.01", "model.qk_norm=true", "moe.shared_gate=true"},
        Words{"train.order=\"gpipe\"", "model.leading_dense_layers=1", "model.ffn_hidden_size=48"}}) {
    const Program plain = train_program(make_config(sets));
    for (unsigned mask = 0; mask < 64; ++mask) {
      SCOPED_TRACE(joined(subset(mask)));
      const Program again = recompute(plain, {subset(mask), {}});
      EXPECT_EQ(again == plain, mask == 0);
      expect_same_but_rebuilt(plain, again);
      EXPECT_EQ(joined(interpret::check(again).faults), "");
      const interpret::Plan plan = interpret::plan(again);
      EXPECT_EQ(joined(interpret::check_plan(again, plan).faults), "");
      EXPECT_LE(double(plan.arena_bytes), 1.15 * double(plan.live_peak_bytes));
      EXPECT_TRUE(interpret::parse(interpret::print(again)) == again);
    }
  }
}

TEST(Recompute, ReplaysStandRightBeforeTheirFirstReader) {
  const Program again = recompute(train_program(make_config()), {{"layer"}, {}});
  for (size_t i = 0; i < again.stages.size(); ++i) {
    if (!again.stages[i].replay) continue;
    size_t next = i;
    while (again.stages[next].replay) ++next;
    const Stage& reader = again.stages[next];
    EXPECT_TRUE(reader.phase == Phase::BackwardInput || reader.phase == Phase::BackwardWeight)
        << stage_name(reader);
    EXPECT_EQ(reader.layer, again.stages[i].layer) << stage_name(reader);
    EXPECT_EQ(reader.microbatch, again.stages[i].microbatch) << stage_name(reader);
  }
}

TEST(Recompute, NothingIsRebuiltTwice) {
  const Program again = recompute(train_program(make_config()), {kModules, {}});
  std::set<std::string> names;
  for (const Stage& s : again.stages)
    if (s.replay) {
      EXPECT_TRUE(names.insert(stage_name(s)).second) << stage_name(s);
    }
  EXPECT_GT(names.size(), 40u);
}

TEST(Recompute, CostsTheFlopsOfItsReplaysAndNoMore) {
  const config::Config config = make_config();
  const Program plain = train_program(config);
  const double seq = 24, tokens = 2 * 2 * seq;
  const double none = cost::hardware_flops(plain);
  EXPECT_GT(none, cost::model_flops(config, tokens, seq).total());
  const auto extra = [&](const std::string& module) {
    return cost::hardware_flops(recompute(plain, {{module}, {}})) - none;
  };
  EXPECT_EQ(extra("norm"), 0) << "no matrix product in it";
  EXPECT_EQ(extra("activation"), 0);
  EXPECT_EQ(extra("core_attention"), 3 * 2 * tokens * seq * 32);
  // expert_down and shared_down are not needed again: nothing of the backward reads their output.
  EXPECT_EQ(extra("experts"), 3 * 2 * (2 * tokens) * 32 * 48);
  EXPECT_EQ(extra("shared_experts"), 3 * 2 * tokens * 32 * 80);
  EXPECT_GT(extra("layer"), extra("core_attention") + extra("experts") + extra("shared_experts"));
}

std::string refusal(const Words& sets, const RecomputeOptions& options) {
  return testing::message_of(base::ExitCode::BadInput,
                             [&] { recompute(train_program(make_config(sets)), options); });
}

TEST(Recompute, AModuleThatFreesNothingIsAnError) {
  const auto says = [](const std::string& text, const std::string& module) {
    return text.find("names '" + module + "', which would free nothing") != std::string::npos;
  };
  EXPECT_TRUE(
      says(refusal({"moe.shared_ffn_hidden_size=0"}, {{"norm", "shared_experts"}, {}}), "shared_experts"));
  const Words one_dense = {"model.leading_dense_layers=1", "model.ffn_hidden_size=48"};
  EXPECT_TRUE(says(refusal(one_dense, {{"experts"}, {true, false, false}}), "experts"));
  EXPECT_EQ(refusal(one_dense, {{"experts"}, {true, true, false}}), "");
  for (const std::string& module : kModules)
    EXPECT_TRUE(says(refusal({}, {{module}, {false, false, false}}), module));
  EXPECT_TRUE(says(refusal({}, {{"attention"}, {}}), "attention")) << "no module of that name";
  // Nothing is freed where there is no backward.
  const config::Config config = make_config();
  EXPECT_THROW(recompute(build_evaluation(config, model::make_parameters(config)), {{"layer"}, {}}),
               base::Error);
}

// DeepSeek-V3's first pipeline stage: layers without experts, in a model whose other layers have them.
Words dense_first_stage(Words more) {
  more.insert(more.end(),
              {"parallel.pp=2", "parallel.ep=2", "model.num_layers=4", "model.leading_dense_layers=2",
               "model.ffn_hidden_size=48", "train.num_microbatches=4"});
  return more;
}

TEST(Recompute, APipelineStageWithoutExpertsWasRefusedThoughTheModelHasThem) {
  const RankPrograms plain = build_ranks(make_config(dense_first_stage({})), 4);
  const RankPrograms r =
      build_ranks(make_config(dense_first_stage({"recompute.modules=[\"experts\",\"norm\"]"})), 4);
  const auto replays = [](const Program& p, std::string_view module) {
    return std::count_if(p.stages.begin(), p.stages.end(), [&](const Stage& s) {
      return s.replay != 0 && program::in_module(s.op, std::string(module));
    });
  };
  EXPECT_EQ(replays(r.programs[0], "experts"), 0);
  EXPECT_GT(replays(r.programs[0], "norm"), 0);
  EXPECT_GT(replays(r.programs[1], "experts"), 0);
  const RankPrograms alone =
      build_ranks(make_config(dense_first_stage({"recompute.modules=[\"experts\"]"})), 4);
  EXPECT_TRUE(alone.programs[0] == plain.programs[0]) << "nothing to rebuild on the first stage";
}

TEST(Recompute, AModuleThatFreesNothingInTheWholeModelIsStillRefusedOverAPipeline) {
  config::Config c = make_config(dense_first_stage({"recompute.modules=[\"norm\"]"}));
  c.recompute.modules = {"experts"};
  c.recompute.layers = "0-1";
  try {
    build_ranks(c, 4);
    FAIL() << "accepted";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("recompute.modules names 'experts', which would free nothing"),
              std::string::npos)
        << e.what();
  }
}

TEST(Recompute, AModuleOfFrozenWeightsThatFreesNothingOnAnyStageWasAcceptedOverAPipeline) {
  const auto refused = [](const Words& sets) {
    return testing::message_of(base::ExitCode::BadInput, [&] { build_ranks(make_config(sets), 2); });
  };
  const Words frozen = {"recompute.modules=[\"activation\"]",
                        "optimizer.freeze=[\"experts\",\"shared_experts\"]", "model.num_layers=4",
                        "train.num_microbatches=4"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), frozen.begin(), frozen.end());
    return more;
  };
  const std::string says = "recompute.modules names 'activation', which would free nothing";
  EXPECT_NE(refused(with({"parallel.ep=2"})).find(says), std::string::npos);
  EXPECT_NE(refused(with({"parallel.pp=2"})).find(says), std::string::npos);
  EXPECT_NE(refused(with({"parallel.pp=2", "parallel.vpp=2"})).find(says), std::string::npos);
  EXPECT_NE(testing::message_of(
                base::ExitCode::BadInput,
                [&] {
                  build_ranks(make_config(with({"parallel.pp=2", "parallel.optimizer_group=2"})), 4);
                })
                .find(says),
            std::string::npos);
  // Weights of dense layers are not frozen: the first stage frees, and the second may free nothing.
  EXPECT_EQ(refused(with({"parallel.pp=2", "model.leading_dense_layers=1", "model.ffn_hidden_size=48"})), "");
}

}  // namespace
}  // namespace pleat::schedule
