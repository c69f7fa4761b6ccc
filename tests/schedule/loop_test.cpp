// train.order = "loop": three microbatches are written down, and what runs are all of them: written out, the program is
// that of 1f1b stage by stage, whatever the model, the layout and the passes.
#include <gtest/gtest.h>

#include "cost/flops.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "interpret/print/print.h"
#include "program/order.h"
#include "program/repeat.h"
#include "schedule/pass/pass.h"
#include "schedule/run_together.h"
#include "schedule/schedule_support.h"
#include "schedule/simulated_step.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;

// Everything a stage is but where it stands and what it waits for.
std::vector<std::string> stages_of(const Program& p) {
  std::vector<std::string> out;
  for (const Stage& s : p.stages) {
    std::string line = fmt::format("{} @{} {} {}", stage_name(s), p.lanes[size_t(s.lane)].name,
                                   name_of(s.group), name_of(s.peer));
    for (const Attr& a : p.attrs[size_t(s.attrs)]) line += fmt::format(" {}={}", a.key, a.number);
    const auto add = [&](ValueId value, int access) {
      if (value == kNoValue) return void(line += " -");
      const Value& v = p.values[size_t(value)];
      line += fmt::format(" {}{}:{}+{}[{}]", access, v.name,
                          v.view_of < 0 ? "" : p.values[size_t(v.view_of)].name, v.offset, num_bytes(v));
    };
    for (const Use& use : s.uses) add(use.value, static_cast<int>(use.access));
    add(s.scratch, 0);
    out.push_back(std::move(line));
  }
  return out;
}

Words with(Words sets, const Words& more) {
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

// The same step in both orders.
struct Orders {
  config::Config plain_config, loop_config;
  RankPrograms plain, loop;
  Orders(const Words& sets, int64_t ranks)
      : plain_config(make_config(sets)),
        loop_config(make_config(with(sets, {"train.order=\"loop\""}))),
        plain(build_ranks(plain_config, ranks)),
        loop(build_ranks(loop_config, ranks)) {}
};

// The host writes inputs of the repeated microbatch between passes, those that nobody reads too: nothing else that is in
// use by then may lie there.
void expect_inputs_to_themselves(const Program& p, const interpret::Plan& plan) {
  const interpret::Lifetimes lives(p, Order(p));
  const StageRange range = repeated(p);
  for (size_t i = 0; i < p.values.size(); ++i) {
    const Value& in = p.values[i];
    if (in.life != Life::Input || in.microbatch != p.repeat.microbatch || in.view_of != kNoValue) continue;
    ASSERT_GE(plan.offset[i], 0) << in.name;
    for (size_t j = 0; j < p.values.size(); ++j) {
      const Value& v = p.values[j];
      if (j == i || v.view_of != kNoValue || v.space != in.space || !lives[j].used ||
          lives[j].first_in_list >= range.end)
        continue;
      EXPECT_TRUE(plan.offset[j] + num_bytes(v) <= plan.offset[i] ||
                  plan.offset[i] + num_bytes(in) <= plan.offset[j])
          << in.name << " and " << v.name;
    }
  }
}

void expect_same_written_out(const Words& sets, int64_t ranks) {
  const Orders o(sets, ranks);
  const Program& loop = o.loop.programs[0];
  EXPECT_EQ(loop.repeat.times, o.plain_config.train.num_microbatches / o.plain.mesh.dp - 2);
  EXPECT_LT(loop.stages.size(), o.plain.programs[0].stages.size());
  EXPECT_EQ(interpret::parse(interpret::print(loop)), loop);
  const Program out = unrolled(loop);
  EXPECT_FALSE(has_repeat(out));
  EXPECT_EQ(joined(interpret::check(out).faults), "");
  const auto expected = stages_of(o.plain.programs[0]), got = stages_of(out);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t s = 0; s < got.size(); ++s) ASSERT_EQ(got[s], expected[s]) << "stage " << s;
  EXPECT_DOUBLE_EQ(cost::hardware_flops(loop), cost::hardware_flops(o.plain.programs[0]));
  EXPECT_EQ(host_waits_of(o.loop), host_waits_of(o.plain));
  // Memory of a step is that of three microbatches.
  const interpret::Plan plan = interpret::plan(loop);
  EXPECT_EQ(joined(interpret::check_plan(loop, plan).faults), "");
  expect_inputs_to_themselves(loop, plan);
  EXPECT_LE(plan.live_peak_bytes, interpret::plan(o.plain.programs[0]).live_peak_bytes);
  require_runs_together(interpret::network_of_roles(o.loop.programs), Meeting::OnHost);
}

const Words kSix = {"train.num_microbatches=6"};

}  // namespace

TEST(Loop, WrittenOutItIsTheLongerProgramForEveryModel) {
  int tried = 0;
  for (const Case& c : cases()) {
    const config::Config config = make_config(c.sets);
    if (config.model.num_mtp_layers > 0 || config.train.order == "gpipe") continue;
    SCOPED_TRACE(c.name);
    expect_same_written_out(with(c.sets, kSix), 1);
    ++tried;
  }
  EXPECT_GE(tried, 20);
}

TEST(Loop, WrittenOutItIsTheLongerProgramForEveryPassAndLayout) {
  const struct {
    const char* name;
    int64_t ranks;
    Words sets;
  } kinds[] = {
      {"recompute", 1, {"recompute.modules=[\"norm\",\"activation\",\"experts\"]"}},
      {"recompute of layers", 1, {"recompute.modules=[\"layer\"]"}},
      {"offload", 1, {"offload.modules=[\"core_attention\",\"expert_up\"]", "offload.min_bytes=0"}},
      {"offload of layers", 1, {"offload.modules=[\"layer\"]", "offload.min_bytes=0", "offload.keep_last=1"}},
      {"states on the host", 1, {"optimizer.state_space=\"host\""}},
      {"few bits", 1, {"precision.recipe=\"fp8\""}},
      {"frozen", 1, {"optimizer.freeze=[\"embedding\"]"}},
      {"budget",
       2,
       {"parallel.ep=2", "moe.token_budget=1.5", "moe.overflow=\"drop\"", "train.num_microbatches=8"}},
      {"data", 2, {"train.num_microbatches=8"}},
      {"tensor", 2, {"parallel.tp=2"}},
      {"experts", 2, {"parallel.ep=2", "train.num_microbatches=8"}},
      {"experts, gathered",
       2,
       {"parallel.ep=2", "parallel.dispatcher=\"allgather\"", "train.num_microbatches=8"}},
      {"experts through windows",
       2,
       {"parallel.ep=2", "parallel.exchange=\"windows\"", "train.num_microbatches=8"}},
      {"ring", 2, {"parallel.cp=2", "parallel.context=\"ring\""}},
      {"context", 2, {"parallel.cp=2", "parallel.context=\"allgather\""}},
      {"folded", 4, {"parallel.tp=2", "parallel.ep=4", "train.num_microbatches=8"}},
  };
  for (const auto& k : kinds) {
    SCOPED_TRACE(k.name);
    expect_same_written_out(with(kSix, k.sets), k.ranks);
  }
}

TEST(Loop, AMillionMicrobatchesAreThree) {
  const config::Config c = make_config({"train.num_microbatches=1048576", "train.order=\"loop\""});
  const Program p = build_ranks(c, 1).programs[0],
                small = build_ranks(make_config({"train.num_microbatches=3"}), 1).programs[0];
  EXPECT_EQ(p.stages.size(), small.stages.size());
  EXPECT_EQ(p.repeat.times, 1048574);
  // The inputs of the repeated one stay until the last pass.
  const interpret::Plan plan = interpret::plan(p);
  EXPECT_LE(plan.live_peak_bytes,
            interpret::plan(small).live_peak_bytes + plan.total[static_cast<size_t>(Owner::Inputs)]);
  EXPECT_NE(testing::message_of([&] { unrolled(p); }).find("1048574 passes over"), std::string::npos);
}

// Nothing overlaps between microbatches; on one lane that costs nothing.
TEST(Loop, TakesAsLongAsItsStagesOneBehindTheOther) {
  const Ground ground = make_ground(cost::find_machine("h200"));
  const Words plain = with(kSix, {"moe.shared_ffn_hidden_size=0"});
  const Orders one(plain, 1);
  EXPECT_EQ(SimulatedStep(one.loop_config, one.loop, ground).run().step_ns,
            SimulatedStep(one.plain_config, one.plain, ground).run().step_ns);
  const Orders several(with(kSix, {"offload.modules=[\"layer\"]", "offload.min_bytes=0"}), 1);
  EXPECT_GE(SimulatedStep(several.loop_config, several.loop, ground).run().step_ns,
            SimulatedStep(several.plain_config, several.plain, ground).run().step_ns);
}

TEST(Loop, IsRefusedWhereMicrobatchesDoNotStandAlone) {
  const auto refused = [](const Words& sets, int64_t ranks) {
    return testing::refusal([&] { build_ranks(make_config(with({"train.order=\"loop\""}, sets)), ranks); });
  };
  EXPECT_NE(refused({"train.num_microbatches=3"}, 1).find("are 3, needed 4 or more"), std::string::npos);
  EXPECT_NE(refused({"train.num_microbatches=6"}, 2).find("are 3, needed 4 or more"), std::string::npos);
  EXPECT_NE(refused({"train.num_microbatches=8", "parallel.pp=2"}, 2).find("needs parallel.pp = 1"),
            std::string::npos);
  EXPECT_NE(refused({"train.num_microbatches=8", "model.num_mtp_layers=1"}, 1).find("shifts the labels"),
            std::string::npos);
  EXPECT_NE(
      refused({"train.num_microbatches=8", "device.kind=\"cuda\""}, 1).find("needs device.kind = \"cpu\""),
      std::string::npos);
}

// What a pass leaves behind for anybody but a sum is found.
TEST(Loop, WhatAPassHandsOnIsFound) {
  const Program right = train_program(make_config(with(kSix, {"train.order=\"loop\""})));
  ASSERT_EQ(joined(interpret::check(right).faults), "");
  const auto faults = [](const Program& p) { return joined(interpret::check(p).faults); };
  const auto first = [](const Program& p, int microbatch, Op op, Phase phase) -> size_t {
    for (size_t s = 0; s < p.stages.size(); ++s)
      if (p.stages[s].microbatch == microbatch && p.stages[s].op == op && p.stages[s].phase == phase)
        return s;
    throw std::runtime_error("no such stage");
  };
  {  // the repeated microbatch reads what the first one left
    Program p = right;
    Stage& s = p.stages[first(p, 1, Op::attn_norm, Phase::Forward)];
    s.uses[0].value = value_named(p, "mb0.embedded");
    EXPECT_NE(faults(p).find("is repeated and uses 'mb0.embedded' of another microbatch"), std::string::npos);
  }
  {  // the last one reads what the repeated one left
    Program p = right;
    p.stages[first(p, 2, Op::attn_norm, Phase::Forward)].uses[0].value = value_named(p, "mb1.embedded");
    EXPECT_NE(faults(p).find("uses 'mb1.embedded' of microbatch 1, which is repeated"), std::string::npos);
  }
  {  // a sum is begun anew
    Program p = right;
    for (Use& use : p.stages[first(p, 1, Op::qkv, Phase::BackwardWeight)].uses)
      if (use.access == Access::Update) use.access = Access::Write;
    EXPECT_NE(faults(p).find("is repeated and overwrites 'layers.2.attn.qkv.weight.grad' in every pass"),
              std::string::npos);
  }
  {  // a stage of another microbatch stands among them
    Program p = right;
    const size_t at = first(p, 1, Op::attn_norm, Phase::Forward);
    std::swap(p.stages[at], p.stages[repeated(p).end]);
    EXPECT_NE(faults(p), "");
  }
}

}  // namespace pleat::schedule
