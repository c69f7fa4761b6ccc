// Offload: what it moves, to the byte; where the copies stand and what waits for them; what it never touches.
#include "schedule/pass/offload.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <set>

#include "base/error.h"
#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "program/turns.h"
#include "schedule/pass/low_precision.h"
#include "schedule/pass/recompute.h"
#include "schedule/run_together.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

using namespace program;

const Words kOffloadModules = {"attn_norm", "qkv",       "core_attention", "attn_out",
                               "mlp_norm",  "expert_up", "activation",     "layer"};

OffloadOptions all_of(const Words& modules) { return {.modules = modules, .layers = {}, .keep_last = 0}; }

// A vocabulary so large that the peak is where the logits are, between forward and backward.
config::Config offload_peak_at_loss(const Words& more = {}) {
  Words sets = {"model.vocab_size=20000",  "train.loss_chunk=48", "train.num_microbatches=1",
                "moe.shared_gate=true",    "model.qk_norm=true",  "model.leading_dense_layers=1",
                "model.ffn_hidden_size=48"};
  sets.insert(sets.end(), more.begin(), more.end());
  return make_config(sets);
}

// Bytes a module saves in one layer, written down from the shapes of the model: T tokens, R routed rows.
struct SavedSizes {
  int64_t T = 48, h = 32, d = 8, H = 4, G = 2, R = 96, f = 24, dense = 48, experts = 8;
  int64_t floats(int64_t n) const { return padded(4 * n); }
  int64_t offsets() const { return padded(4 * (experts + 1)); }
  int64_t norm() const { return floats(T * h) + floats(T); }
  int64_t packed() const { return floats(T * (H + 2 * G) * d); }

  int64_t of(const std::string& module, bool moe) const {
    if (module == "attn_norm" || module == "mlp_norm") return norm();
    if (module == "qkv") return floats(T * h) + packed() + floats(T * (H + G));
    if (module == "core_attention") return packed() + floats(T * H * d) + floats(T * H);
    if (module == "attn_out") return floats(T * H * d);
    if (module == "expert_up") return moe ? floats(R * h) + offsets() : 0;
    return moe ? floats(R * 2 * f) + floats(R) + offsets() : floats(T * 2 * dense);
  }
};

TEST(Offload, MovesThePredictedBytesOffThePeak) {
  const Program plain = train_program(offload_peak_at_loss());
  const interpret::Plan before = interpret::plan(plain);
  const std::string peak = stage_name(plain.stages[size_t(before.peak_stage)]);
  EXPECT_TRUE(peak.find(" head") != std::string::npos || peak.find(" loss") != std::string::npos) << peak;
  EXPECT_EQ(before.pinned.arena_bytes, 0);
  for (const std::string_view name : offload_modules()) {
    const std::string module(name);
    SCOPED_TRACE(module);
    for (const int64_t keep : {0, 1}) {
      OffloadOptions options = all_of({module});
      options.keep_last = keep;
      const Program out = offload(plain, options);
      const interpret::Plan after = interpret::plan(out);
      int64_t expected = SavedSizes().of(module, false);
      for (int64_t layer = 1; layer < 3 - keep; ++layer) expected += SavedSizes().of(module, true);
      EXPECT_EQ(stage_name(out.stages[size_t(after.peak_stage)]), peak);
      EXPECT_EQ(before.live_peak_bytes - after.live_peak_bytes, expected);
      EXPECT_EQ(after.pinned.live_peak_bytes, expected);
      EXPECT_EQ(after.pinned.arena_bytes, expected);
      // What the plan allocates falls too: the waits let it give the bytes away.
      EXPECT_LE(after.arena_bytes, before.arena_bytes - expected + before.arena_bytes / 50);
    }
  }
}

TEST(Offload, MixturesMoveTheUnionOfTheirValues) {
  const Program plain = train_program(offload_peak_at_loss());
  const interpret::Plan before = interpret::plan(plain);
  for (const Words& modules : {Words{"core_attention", "attn_out"}, Words{"attn_norm", "mlp_norm"},
                               Words{"attn_norm", "qkv", "core_attention", "attn_out", "mlp_norm", "expert_up",
                                     "activation"},
                               Words{"layer"}}) {
    SCOPED_TRACE(joined(modules));
    std::set<ValueId> values;
    int64_t expected = 0;
    for (const SavedValue& v : offloaded_values(plain, all_of(modules))) {
      EXPECT_TRUE(values.insert(v.value).second) << "once";
      expected += padded(num_bytes(plain.values[size_t(v.value)]));
    }
    const interpret::Plan after = interpret::plan(offload(plain, all_of(modules)));
    EXPECT_EQ(before.live_peak_bytes - after.live_peak_bytes, expected);
    EXPECT_EQ(after.pinned.arena_bytes, expected);
  }
  // The output of attention is saved by both, and goes once.
  const SavedSizes s;
  EXPECT_EQ(interpret::plan(offload(plain, all_of({"core_attention", "attn_out"}))).pinned.arena_bytes,
            3 * s.of("core_attention", true));
}

// Of a whole layer nothing stays but what several layers need, and what the head keeps.
TEST(Offload, ALayerLeavesNothingBehind) {
  const Program plain = train_program(offload_peak_at_loss());
  const Program out = offload(plain, all_of({"layer"}));
  const interpret::Plan plan = interpret::plan(out);
  const interpret::Lifetimes lives(out, Order(out));
  std::set<std::string> alive;
  for (size_t i = 0; i < out.values.size(); ++i) {
    const Value& v = out.values[i];
    if (v.life == Life::Step && v.space == Space::Device && v.view_of == kNoValue && v.owner == Owner::Activations &&
        lives[i].used && lives[i].first_in_list < plan.peak_stage && lives[i].last_in_list > plan.peak_stage)
      alive.insert(v.name);
  }
  EXPECT_EQ(alive, (std::set<std::string>{"mb0.L2.x_out", "mb0.cos_sin", "mb0.d_final_normed", "mb0.final_rstd"}));
}

// Recompute first: what is left to move is what the recomputation reads.
TEST(Offload, WhatIsRecomputedIsNotMoved) {
  const Program plain = train_program(offload_peak_at_loss());
  const Program again = recompute(plain, {{"layer"}, {}});
  const interpret::Plan before = interpret::plan(again);
  const Program out = offload(again, all_of({"attn_norm"}));
  const interpret::Plan after = interpret::plan(out);
  const SavedSizes s;
  EXPECT_EQ(before.live_peak_bytes - after.live_peak_bytes, 3 * s.floats(s.T * s.h)) << "the inputs of the layers";
  for (const char* module : {"qkv", "core_attention", "expert_up", "activation"}) {
    OffloadOptions options = all_of({module});
    options.min_bytes = 512;  // routing decisions are kept, and may go
    EXPECT_THROW(offload(again, options), base::Error) << module;
  }
  // Norms computed again: their inputs may go, their outputs are not there.
  const Program norms = recompute(plain, {{"norm"}, {}});
  EXPECT_EQ(interpret::plan(offload(norms, all_of({"attn_norm", "mlp_norm"}))).pinned.arena_bytes,
            6 * s.floats(s.T * s.h));
}

// Without the copies, and with every ".fetched" read as its original, the program is the one that went in.
void expect_same_but_copied(const Program& plain, const Program& out) {
  ASSERT_GE(out.values.size(), plain.values.size());
  std::map<std::string, ValueId> named;
  for (size_t i = 0; i < plain.values.size(); ++i) named[plain.values[i].name] = static_cast<ValueId>(i);
  const auto original = [&](ValueId v) {
    if (static_cast<size_t>(v) < plain.values.size()) return v;
    std::string name = out.values[size_t(v)].name;
    if (const size_t at = name.find(".fetched"); at != std::string::npos) name.erase(at, 8);
    return named.contains(name) ? named.at(name) : kNoValue;
  };
  std::set<ValueId> away, back;
  size_t next = 0;
  for (const Stage& s : out.stages) {
    if (s.op == Op::offload) {
      EXPECT_TRUE(away.insert(s.uses[0].value).second) << stage_name(s);
      EXPECT_EQ(out.values[size_t(s.uses[1].value)].space, Space::Pinned);
      EXPECT_EQ(out.lanes[size_t(s.lane)].name, "d2h");
      continue;
    }
    if (s.op == Op::fetch) {
      EXPECT_EQ(out.values[size_t(s.uses[0].value)].space, Space::Pinned);
      EXPECT_EQ(out.lanes[size_t(s.lane)].name, "h2d");
      EXPECT_TRUE(away.contains(original(s.uses[1].value))) << stage_name(s);
      EXPECT_TRUE(back.insert(original(s.uses[1].value)).second) << stage_name(s);
      continue;
    }
    Stage as_before = s;
    for (Use& use : as_before.uses) {
      if (use.value == kNoValue) continue;
      EXPECT_FALSE(back.contains(root_of(out, use.value))) << stage_name(s) << " reads what has gone";
      use.value = original(use.value);
    }
    ASSERT_LT(next, plain.stages.size());
    as_before.after = plain.stages[next].after;  // whom it waits for now is told by other tests
    EXPECT_TRUE(as_before == plain.stages[next]) << stage_name(s);
    ++next;
  }
  EXPECT_EQ(next, plain.stages.size());
  EXPECT_EQ(away, back);
  EXPECT_FALSE(away.empty());
}

bool same_turns(const Program& a, const Program& b) {
  const auto ta = turns(a), tb = turns(b);
  return ta.size() == tb.size() && std::equal(ta.begin(), ta.end(), tb.begin(), [](const Turn& x, const Turn& y) {
           return x.microbatch == y.microbatch && x.chunk == y.chunk && x.forward == y.forward &&
                  x.num_layers == y.num_layers;
         });
}

TEST(Offload, EveryModelBuildsChecksAndPlans) {
  for (const Case& c : cases()) {
    const config::Config config = make_config(c.sets);
    const Program plain = train_program(config);
    for (const std::string& module : kOffloadModules) {
      SCOPED_TRACE(c.name + " " + module);
      const OffloadOptions options = all_of({module});
      if (offloaded_values(plain, options).empty()) {
        EXPECT_EQ(module, "expert_up");
        EXPECT_EQ(c.name, "dense");
        continue;
      }
      const Program out = offload(plain, options);
      expect_same_but_copied(plain, out);
      EXPECT_TRUE(same_turns(plain, out));
      EXPECT_EQ(joined(interpret::check(out).faults), "");
      for (const interpret::Packing packing : {interpret::Packing::OneByOne, interpret::Packing::Frames})
        EXPECT_EQ(joined(interpret::check_plan(out, interpret::plan(out, packing)).faults), "");
      EXPECT_TRUE(interpret::parse(interpret::print(out)) == out);
    }
  }
}

// One microbatch after the other takes the host's memory once, as the device's; all at once take it as often.
TEST(Offload, HostMemoryIsReusedAsTheDevicesIs) {
  const auto pinned = [](const char* order, int microbatches) {
    const config::Config c =
        make_config({fmt::format("train.order=\"{}\"", order), fmt::format("train.num_microbatches={}", microbatches)});
    return interpret::plan(offload(train_program(c), all_of({"attn_norm", "expert_up"}))).pinned.arena_bytes;
  };
  const int64_t one = pinned("1f1b", 1);
  EXPECT_GT(one, 0);
  EXPECT_EQ(pinned("1f1b", 4), one);
  EXPECT_EQ(pinned("gpipe", 4), 4 * one);
}

// Which stages are known to be finished when a copy starts, and which know that it has ended.
TEST(Offload, CopiesRunAheadAndLagByTheirBoundAndNoMore) {
  const Program plain =
      train_program(make_config({"model.num_layers=6", "train.num_microbatches=1", "moe.shared_ffn_hidden_size=0"}));
  for (const int64_t ahead : {2, 4, 6}) {
    OffloadOptions options = all_of({"attn_norm", "core_attention", "mlp_norm", "activation"});
    options.ahead = ahead;
    const Program out = offload(plain, options);
    const Order order(out);
    // How often it is known, and how often not: of what is too far away to overlap, and of what is near.
    std::array<int, 2> out_far{}, out_near{}, in_far{}, in_near{};
    for (size_t c = 0; c < out.stages.size(); ++c) {
      const Stage& copy = out.stages[c];
      if (copy.op != Op::offload && copy.op != Op::fetch) continue;
      for (size_t s = 0; s < out.stages.size(); ++s) {
        const Stage& stage = out.stages[s];
        const bool outwards = copy.op == Op::offload;
        if (stage.lane != kComputeLane || stage.layer < 0 || stage.phase == Phase::Update) continue;
        if ((stage.phase == Phase::Forward) != outwards) continue;
        const int layers = static_cast<int>(ahead) / 2, away = stage.layer - copy.layer;
        const StageId a = static_cast<StageId>(c), b = static_cast<StageId>(s);
        const size_t known = outwards ? order.before(a, b) : order.before(b, a);
        if (away > layers) ++(outwards ? out_far : in_far)[known];
        if (away > 0 && away < layers) ++(outwards ? out_near : in_near)[known];
      }
    }
    EXPECT_EQ(out_far[0], 0);
    EXPECT_GT(out_far[1], 0);
    EXPECT_EQ(in_far[0], 0);
    EXPECT_GT(in_far[1], 0);
    for (const auto& near : {out_near, in_near}) {
      EXPECT_EQ(near[0] > 0, ahead > 2);
      EXPECT_EQ(near[1], 0);
    }
  }
}

// More ahead is more memory in flight, by no more than the blocks say.
TEST(Offload, MemoryInFlightGrowsWithTheBound) {
  const Program plain = train_program(make_config({"model.num_layers=8", "train.num_microbatches=1"}));
  int64_t before = 0;
  for (const int64_t ahead : {1, 2, 4, 8, 16}) {
    OffloadOptions options = all_of({"layer"});
    options.ahead = ahead;
    const int64_t bytes = interpret::plan(offload(plain, options)).arena_bytes;
    EXPECT_GE(bytes, before) << ahead;
    before = bytes;
  }
  OffloadOptions options = all_of({"layer"});
  options.ahead = 1;
  EXPECT_LT(interpret::plan(offload(plain, options)).arena_bytes, before);
}

// Bytes that are still on their way are nobody's: without one of the waits the plan that counts on it is refused.
TEST(Offload, APlanWithoutItsWaitsIsRefused) {
  const Program plain = train_program(make_config({"train.num_microbatches=2", "model.num_layers=4"}));
  const Program out = offload(plain, all_of({"layer"}));
  const interpret::Plan plan = interpret::plan(out);
  ASSERT_TRUE(interpret::check_plan(out, plan).ok());
  int out_refused = 0, in_refused = 0;
  for (const bool outwards : {true, false}) {
    for (size_t s = 0; s < out.stages.size(); ++s) {
      if (out.stages[s].after.empty() || (out.stages[s].op == Op::fetch) == outwards) continue;
      Program planted = out;
      planted.stages[s].after.clear();
      ASSERT_TRUE(interpret::check(planted).ok());
      (outwards ? out_refused : in_refused) += !interpret::check_plan(planted, plan).ok();
    }
  }
  EXPECT_GT(out_refused, 0);
  EXPECT_GT(in_refused, 0);
  // The host's memory is held to the same.
  interpret::Plan overlaid = plan;
  std::vector<size_t> pinned;
  for (size_t i = 0; i < out.values.size(); ++i)
    if (out.values[i].space == Space::Pinned && out.values[i].microbatch == 0) pinned.push_back(i);
  overlaid.offset[pinned[0]] = overlaid.offset[pinned[1]];
  EXPECT_FALSE(interpret::check_plan(out, overlaid).ok());
}

TEST(Offload, ChosenLayersFractionAndSmallTensors) {
  const Program plain = train_program(make_config({"model.num_layers=4", "train.num_microbatches=2"}));
  const auto layers_of = [&](const OffloadOptions& options, int microbatch) {
    std::vector<std::pair<int, std::string>> out;
    for (const SavedValue& v : offloaded_values(plain, options))
      if (v.microbatch == microbatch) out.emplace_back(v.layer, plain.values[size_t(v.value)].name);
    return out;
  };
  using List = std::vector<std::pair<int, std::string>>;
  OffloadOptions options = all_of({"attn_norm", "expert_up"});
  options.min_bytes = 1024;  // statistics and offsets stay
  options.layers = {false, true, true, false};
  EXPECT_EQ(layers_of(options, 1), (List{{1, "mb1.L0.x_out"},
                                         {1, "mb1.L1.expert_rows"},
                                         {2, "mb1.L1.x_out"},
                                         {2, "mb1.L2.expert_rows"}}));
  options.fraction = 0.75;
  EXPECT_EQ(layers_of(options, 0), (List{{1, "mb0.L0.x_out"}, {1, "mb0.L1.expert_rows"}, {2, "mb0.L1.x_out"}}));
  options.fraction = 0.51;  // rounded up
  EXPECT_EQ(layers_of(options, 0).size(), 3u);
  options.fraction = 0.5;
  EXPECT_EQ(layers_of(options, 0).size(), 2u);
  options.layers = {};
  options.fraction = 1;
  options.keep_last = 3;
  EXPECT_EQ(layers_of(options, 0), (List{{0, "mb0.embedded"}, {0, "mb0.L0.expert_rows"}}));
}

// Where other microbatches are computed between a forward and its backward, nothing has to stay.
TEST(Offload, LastLayersStayWhereTheBackwardFollowsAtOnce) {
  const auto highest = [](const Program& p) {
    int layer = -1;
    for (const Stage& s : p.stages)
      if (s.op == Op::offload) layer = std::max(layer, s.layer);
    return layer;
  };
  const Words offloads = {"model.num_layers=4", "train.num_microbatches=4", "offload.modules=[\"attn_norm\"]",
                          "offload.min_bytes=0"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), offloads.begin(), offloads.end());
    return make_config(more);
  };
  EXPECT_EQ(highest(build_ranks(with({}), 1).programs[0]), 2);
  EXPECT_EQ(highest(build_ranks(with({"train.order=\"gpipe\""}), 1).programs[0]), 3);
  const RankPrograms pipeline = build_ranks(with({"parallel.pp=2"}), 2);
  EXPECT_EQ(highest(pipeline.programs[0]), 1);
  EXPECT_EQ(highest(pipeline.programs[1]), 2);
}

TEST(Offload, LayoutsRunTogetherAndTheirPlansHold) {
  const std::vector<std::pair<int64_t, Words>> layouts = {
      {2, {"parallel.pp=2"}},
      {2, {"parallel.pp=2", "parallel.vpp=2"}},
      {8, {"parallel.pp=2", "parallel.ep=2", "parallel.tp=2"}},
      {4, {"parallel.cp=4", "parallel.context=\"ring\"", "train.seq_len=48"}},
      {2, {"parallel.cp=2", "parallel.context=\"alltoall\""}},
      {4, {"parallel.ep=4", "parallel.tp=2", "device.kind=\"cuda\"", "model.dtype=\"bfloat16\""}},
      {4, {"parallel.ep=2", "parallel.pp=2", "device.kind=\"cuda\"", "parallel.exchange=\"counted\""}},
      {4, {"parallel.pp=2", "parallel.vpp=2", "device.kind=\"cuda\"", "precision.recipe=\"fp8\"",
           "model.dtype=\"bfloat16\""}},
  };
  for (const auto& [ranks, layout] : layouts)
    for (const Words& modules :
         {Words{"offload.modules=[\"layer\"]"}, Words{"offload.modules=[\"attn_norm\",\"expert_up\",\"activation\"]"},
          Words{"offload.modules=[\"attn_norm\"]", "recompute.modules=[\"layer\"]"}}) {
      Words sets = {"model.num_layers=4", "train.num_microbatches=8", "offload.min_bytes=0"};
      sets.insert(sets.end(), layout.begin(), layout.end());
      sets.insert(sets.end(), modules.begin(), modules.end());
      SCOPED_TRACE(joined(sets));
      const config::Config c = make_config(sets);
      const RankPrograms r = build_ranks(c, ranks);
      require_runs_together(interpret::network_of_roles(r.programs), meeting_of(c, ranks));
      for (const Program& p : r.programs) {
        EXPECT_EQ(joined(interpret::check_plan(p, interpret::plan(p)).faults), "");
        EXPECT_TRUE(std::any_of(p.stages.begin(), p.stages.end(), [](const Stage& s) { return s.op == Op::fetch; }));
      }
    }
}

// Products in few bits save codes instead of numbers, and these go.
TEST(Offload, CodesOfFewBitsGoInstead) {
  const config::Config c = make_config({"precision.recipe=\"fp8\"", "offload.modules=[\"qkv\",\"expert_up\"]",
                                        "offload.min_bytes=1024", "offload.keep_last=0"});
  const Program plain = low_precision(train_program(c), c);
  std::set<std::string> names;
  for (const SavedValue& v : offloaded_values(plain, offload_options(c)))
    if (v.microbatch == 0 && v.layer == 1) names.insert(plain.values[size_t(v.value)].name);
  EXPECT_EQ(names, (std::set<std::string>{"mb0.L1.attn_normed.codes", "mb0.L1.expert_rows.codes"}));
}

std::string offload_refusal(const Words& sets) {
  return testing::message_of(base::ExitCode::BadInput, [&] { build_ranks(make_config(sets), 1); });
}

TEST(Offload, AModuleThatMovesNothingIsAnErrorThatSaysWhy) {
  const auto says = [](const Words& sets, const std::string& text) {
    const std::string got = offload_refusal(sets);
    EXPECT_NE(got.find(text), std::string::npos) << got;
  };
  const std::string qkv = "offload.modules=[\"qkv\"]", tiny = "offload.min_bytes=0";
  EXPECT_EQ(offload_refusal({qkv, tiny}), "");
  says({qkv}, "names 'qkv', which would move nothing: the largest tensor it saves has 6144 bytes, "
              "offload.min_bytes is 1048576");
  says({qkv, tiny, "offload.keep_last=3"}, "are among the last offload.keep_last = 3, which stay");
  says({qkv, tiny, "recompute.modules=[\"norm\"]"}, "saves a value of its own for it, or recompute.modules makes");
  says({"offload.modules=[\"attn_norm\",\"activation\"]", tiny, "offload.fraction=0.1"},
       "'activation', which would move nothing: it is not in the first offload.fraction = 0.1");
  // Frozen weights of attention: no gradient reads the input of their projections.
  says({qkv, tiny, "optimizer.freeze=[\"attention\"]"}, "saves a value of its own");
}

TEST(Offload, AStageWithoutTheModuleIsNoMistakeInAPipelineThatHasIt) {
  const Words sets = {"parallel.pp=2", "model.num_layers=4", "model.leading_dense_layers=2",
                      "model.ffn_hidden_size=48", "train.num_microbatches=4", "offload.min_bytes=0",
                      "offload.modules=[\"expert_up\"]"};
  const auto copies = [](const Program& p) {
    return std::count_if(p.stages.begin(), p.stages.end(), [](const Stage& s) { return s.op == Op::offload; });
  };
  const RankPrograms r = build_ranks(make_config(sets), 2);
  EXPECT_EQ(copies(r.programs[0]), 0);
  EXPECT_GT(copies(r.programs[1]), 0);
  config::Config c = make_config(sets);
  c.offload.layers = "0-1";
  const std::string refused = testing::message_of(base::ExitCode::BadInput, [&] { build_ranks(c, 2); });
  EXPECT_NE(refused.find("names 'expert_up', which would move nothing"), std::string::npos) << refused;
}

}  // namespace
}  // namespace pleat::schedule
