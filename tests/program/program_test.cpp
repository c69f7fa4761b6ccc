// The op table, stage names and the Builder.
#include "program/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "program/builder.h"

namespace pleat::program {
namespace {

constexpr Phase kPhases[] = {Phase::Forward, Phase::BackwardInput, Phase::BackwardWeight, Phase::Update};
constexpr int kNumKernels = 0
#define PLEAT_KERNEL(...) +1
#include "program/ops.def"
    ;

TEST(OpTable, EveryOpHasAUniqueNameAndAKernelWithAPhase) {
  std::set<std::string_view> names;
  for (int i = 0; i < num_ops(); ++i) {
    const Op op = static_cast<Op>(i);
    EXPECT_TRUE(names.insert(name_of(op)).second) << name_of(op);
    bool any = false;
    for (Phase phase : kPhases) any |= !arguments_of(op, phase).empty();
    EXPECT_TRUE(any) << name_of(op) << " can run in no phase";
    EXPECT_FALSE(name_of(class_of(op)).empty());
    EXPECT_FALSE(name_of(region_of(op)).empty());
    // The text form splits a stage at spaces, '.' and tags such as "mb0".
    EXPECT_EQ(name_of(op).find_first_of(" .:@=+#0123456789"), std::string_view::npos) << name_of(op);
  }
}

TEST(OpTable, ArgumentListsAreWellFormed) {
  for (int k = 0; k < kNumKernels; ++k) {
    const KernelKind kind = static_cast<KernelKind>(k);
    for (Phase phase : kPhases) {
      const auto& arguments = arguments_of(kind, phase);
      if (arguments.empty()) continue;
      std::set<std::string_view> names;
      bool seen_output = false;
      for (const Argument& a : arguments) {
        SCOPED_TRACE(fmt::format("{} {} '{}'", name_of(kind), name_of(phase), a.name));
        EXPECT_TRUE(names.insert(a.name).second) << "named twice";
        EXPECT_FALSE(a.name.empty());
        EXPECT_EQ(a.name.find_first_of("?+!->= "), std::string_view::npos);
        EXPECT_FALSE(seen_output && !a.output) << "an input behind an output";
        EXPECT_TRUE(a.output || (!a.may_update && !a.in_place)) << "an input cannot be updated";
        EXPECT_TRUE(a.may_update || !a.in_place);
        EXPECT_FALSE(a.in_place && a.optional);
        seen_output |= a.output;
      }
      EXPECT_EQ(seen_output, kind != KernelKind::send && kind != KernelKind::host_wait)
          << name_of(kind) << " " << name_of(phase) << " writes nothing";
    }
  }
}

TEST(OpTable, MarkersAreRead) {
  const auto& linear = arguments_of(Op::qkv, Phase::Forward);
  ASSERT_EQ(linear.size(), 5u);
  EXPECT_EQ(linear[2].name, "bias");
  EXPECT_TRUE(linear[2].optional && !linear[2].output);
  EXPECT_TRUE(linear[4].output && !linear[4].optional && !linear[4].may_update);
  const auto& wgrad = arguments_of(Op::qkv, Phase::BackwardWeight);
  ASSERT_EQ(wgrad.size(), 4u);
  EXPECT_TRUE(wgrad[3].optional && wgrad[3].may_update && !wgrad[3].in_place);
  const auto& loss = arguments_of(Op::loss, Phase::BackwardInput);
  EXPECT_EQ(loss[3].name, "logits");
  EXPECT_TRUE(loss[3].output && loss[3].in_place && loss[3].may_update);
  EXPECT_TRUE(arguments_of(Op::qk_rope, Phase::Update).empty());
}

// What code asks of an argument is a mark in the table, never its name.
TEST(OpTable, MarksNameTheUsesTheyAreOf) {
  Stage exchange;
  exchange.op = Op::dispatch_exchange;
  exchange.uses = {r(0), r(1), w(2)};
  EXPECT_EQ(host_use(exchange), 1);
  EXPECT_EQ(rows_use(exchange), -1);
  Stage up;
  up.op = Op::expert_up;
  up.uses = {r(0), r(1), r(2), none(), none(), w(3)};
  EXPECT_EQ(host_use(up), -1);
  EXPECT_EQ(rows_use(up), 2);
  Stage taken;  // where every row is in use the argument is absent
  taken.op = Op::dispatch_sort;
  taken.uses = {r(0), r(1), none(), w(2)};
  EXPECT_EQ(rows_use(taken), -1);
  taken.uses[2] = r(3);
  EXPECT_EQ(rows_use(taken), 2);

  // The host reads counts of exchanges only; no row has two arguments of one mark.
  for (int i = 0; i < num_ops(); ++i)
    for (const Phase phase : kPhases) {
      int on_host = 0, rows = 0;
      for (const Argument& a : arguments_of(static_cast<Op>(i), phase)) {
        on_host += a.on_host, rows += a.rows;
        EXPECT_FALSE((a.on_host || a.rows) && (a.output || a.repeated)) << a.name;
      }
      EXPECT_LE(on_host, is_exchange(static_cast<Op>(i)) ? 1 : 0) << name_of(static_cast<Op>(i));
      EXPECT_LE(rows, 1) << name_of(static_cast<Op>(i));
    }
}

TEST(OpTable, DecisionsBelongToNoRecomputeModule) {
  const std::set<std::string_view> decisions = {
      "router_gate",   "router_force", "router_choose",   "router_count", "router_record",
      "dispatch_plan", "count_reduce", "dispatch_gather", "gather_plan",  "receive_plan",
      "dispatch_trim", "padded_plan",  "send_plan"};
  for (int i = 0; i < num_ops(); ++i) {
    const Op op = static_cast<Op>(i);
    EXPECT_EQ(in_module(op, "decision"), decisions.contains(name_of(op))) << name_of(op);
    for (const char* module : {"norm", "activation", "core_attention", "experts", "shared_experts", "layer"})
      EXPECT_FALSE(in_module(op, "decision") && in_module(op, module)) << name_of(op);
  }
  // Whole words only: "experts" must not match inside "shared_experts".
  EXPECT_TRUE(in_module(Op::shared_up, "shared_experts"));
  EXPECT_FALSE(in_module(Op::shared_up, "experts"));
  EXPECT_TRUE(in_module(Op::expert_act, "activation") && in_module(Op::expert_act, "experts"));
  EXPECT_FALSE(in_module(Op::combine, "layer"));
}

TEST(StageName, IsTheDocumentedText) {
  Stage s;
  s.op = Op::attn_norm;
  s.microbatch = 0;
  s.layer = 3;
  EXPECT_EQ(stage_name(s), "fwd mb0 L3 attn_norm");
  s = {};
  s.op = Op::head;
  s.phase = Phase::BackwardWeight;
  s.microbatch = 1;
  s.part = 2;
  EXPECT_EQ(stage_name(s), "wgrad mb1 head.2");
  s = {};
  s.op = Op::expert_up;
  s.microbatch = 0;
  s.layer = 3;
  s.replay = 1;
  EXPECT_EQ(stage_name(s), "fwd mb0 L3 expert_up (replay)");
  s = {};
  s.op = Op::clip;
  s.phase = Phase::Update;
  EXPECT_EQ(stage_name(s), "update clip");
}

TEST(StageName, EveryPlaceMakesItsOwnName) {
  std::set<std::string> names;
  size_t count = 0;
  for (Phase phase : kPhases)
    for (int16_t model : {0, 1})
      for (int microbatch : {-1, 0, 11})
        for (int chunk : {0, 1})
          for (int layer : {-1, 0, 1, 11})
            for (int part : {0, 1, 11})
              for (int16_t replay : {0, 1})
                for (Op op : {Op::head, Op::expert_up}) {
                  Stage s;
                  s.op = op, s.phase = phase, s.model = model, s.microbatch = microbatch, s.chunk = chunk;
                  s.layer = layer, s.part = part, s.replay = replay;
                  names.insert(stage_name(s));
                  ++count;
                }
  EXPECT_EQ(names.size(), count);
}

TEST(Program, AttributeSetsAreSortedAndKeptOnce) {
  Program p;
  EXPECT_EQ(p.intern({}), 0);
  const int32_t first = p.intern({{"top_k", 2}, {"experts", 8}});
  EXPECT_EQ(first, 1);
  EXPECT_EQ(p.attrs[1][0].key, "experts");
  EXPECT_EQ(p.intern({{"experts", 8}, {"top_k", 2}}), first);
  EXPECT_EQ(p.intern({{"experts", 8}, {"top_k", 3}}), 2);
}

TEST(Builder, AccWritesFirstThenUpdates) {
  Builder b("p");
  const ValueId x = b.value("x", tensor::Dtype::F32, {4}, Owner::Activations);
  const ValueId g = b.value("g", tensor::Dtype::F32, {4}, Owner::Gradients);
  EXPECT_EQ(b.acc(g).access, Access::Write);
  EXPECT_EQ(b.acc(g).access, Access::Write) << "asking is not writing";
  b.wgrad(Op::attn_norm, {r(x), r(x), r(x), b.acc(g)});
  EXPECT_EQ(b.acc(g).access, Access::Update);
  b.wgrad(Op::attn_norm, {r(x), r(x), r(x), b.acc(g)});
  EXPECT_EQ(b.acc(x).access, Access::Write) << "reading is not writing";
  const Program p = b.take();
  EXPECT_EQ(p.stages[0].uses[3], w(g));
  EXPECT_EQ(p.stages[1].uses[3], u(g));
}

TEST(Builder, AbsentArgumentsHaveOneForm) {
  Builder b("p");
  const ValueId x = b.value("x", tensor::Dtype::F32, {2, 2}, Owner::Activations);
  b.forward(Op::qkv, {r(x), r(x), r(kNoValue), w(kNoValue), w(x)});
  EXPECT_EQ(b.program().stages[0].uses[2], none());
  EXPECT_EQ(b.program().stages[0].uses[3], none());
}

TEST(Builder, RowsAreAViewByBytes) {
  Builder b("p");
  const ValueId x = b.value("x", tensor::Dtype::F64, {10, 3}, Owner::Workspace, Life::Input);
  const ValueId part = b.rows(x, 4, 5, "[1]");
  const Value& v = b.program().values[static_cast<size_t>(part)];
  EXPECT_EQ(v.name, "x[1]");
  EXPECT_EQ(v.view_of, x);
  EXPECT_EQ(v.offset, 4 * 3 * 8);
  EXPECT_EQ(v.shape, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(v.life, Life::Input);
  EXPECT_EQ(num_bytes(v), 5 * 3 * 8);
  EXPECT_EQ(root_of(b.program(), part), x);
  EXPECT_EQ(root_of(b.program(), x), x);
}

TEST(Builder, LanesAreFoundByName) {
  Builder b("p");
  EXPECT_EQ(b.lane("compute", "compute"), 0);
  const int side = b.lane("side", "compute");
  EXPECT_EQ(side, 1);
  EXPECT_EQ(b.lane("side", "compute"), side);
  b.at({0, 2, 5}, side);
  const ValueId x = b.value("x", tensor::Dtype::F32, {1}, Owner::Activations);
  b.forward(Op::router_record, {r(x), w(x)});
  const Stage& s = b.program().stages[0];
  EXPECT_EQ(s.lane, side);
  EXPECT_EQ(s.microbatch, 0);
  EXPECT_EQ(s.layer, 2);
  EXPECT_EQ(s.part, 5);
}

TEST(BuilderDeathTest, RefusesWrongArgumentCountAndRowsOutside) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Builder b("p");
  const ValueId x = b.value("x", tensor::Dtype::F32, {4}, Owner::Activations);
  EXPECT_DEATH(b.forward(Op::router_record, {r(x)}), "router_record fwd takes 2 arguments, got 1");
  EXPECT_DEATH(b.rows(x, 2, 3, "[0]"), "rows 2\\+3 of x");
}

}  // namespace
}  // namespace pleat::program
