// Weights that move inside the backward: the same bits as at the end, and gradients whose memory is free before the
// last of them is there.
#include "schedule/pass/early_update.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <limits>

#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "model/state.h"
#include "schedule/build.h"
#include "schedule/pass/host_states.h"
#include "schedule/pass/recompute.h"
#include "support/refusal.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

using Sets = std::vector<std::string>;

config::Config one_microbatch(Sets sets) {
  sets.insert(sets.begin(), {"train.num_microbatches=1", "optimizer.clip_by=\"tensor\""});
  return small_config("", sets);
}

// The state and the results after three steps.
std::string three_steps_of(const program::Program& p, const config::Config& c, const runtime::Programs& start,
                           const interpret::RunOptions& run = {}) {
  Runtime runtime(p, 2);
  copy_state(start, runtime);
  std::string out;
  for (int step = 1; step <= 3; ++step) {
    write_random_batch(runtime.executor(), c, step);
    runtime.executor().run(run);
    const double* scale = static_cast<const double*>(runtime.executor().data("grad_scale"));
    out += fmt::format("{} {} ", scale[0], *static_cast<const int32_t*>(runtime.executor().data("commit")));
  }
  Snapshot state = snapshot(runtime);
  std::erase_if(state, [&](const auto& entry) {
    return runtime.program().values[size_t(runtime.executor().find(entry.first))].view_of !=
           program::kNoValue;
  });
  return out + digest(state);
}

const std::vector<Sets>& models() {
  static const std::vector<Sets> all = {
      {},
      {"optimizer.clip=0", "optimizer.clip_by="},
      {"optimizer.clip_by=\"previous\""},
      {"model.tie_embeddings=true", "moe.shared_ffn_hidden_size=8"},
      {"model.num_layers=3", "model.leading_dense_layers=1", "model.ffn_hidden_size=20", "model.qk_norm=true",
       "moe.score=\"sigmoid\"", "moe.load_balancing=[\"aux\",\"bias\"]", "moe.aux_coef=[0.01]"},
      {"model.num_mtp_layers=1"},
      {"model.dtype=\"float32\"", "optimizer.moment2_dtype=\"block8\""},
  };
  return all;
}

}  // namespace

TEST(EarlyUpdate, NoBitChanges) {
  for (const Sets& sets : models()) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(sets, " ")));
    const config::Config c = one_microbatch(sets);
    runtime::Programs start(c, train_only());
    start.initialize();
    const program::Program plain = schedule::build_training_step(c, start.table());
    const std::string want = three_steps_of(plain, c, start);
    EXPECT_NE(want.find(" 1 "), std::string::npos) << "no step was committed";
    const program::Program early = schedule::early_update(plain);
    interpret::require_ok(interpret::check(early), "early");
    EXPECT_EQ(three_steps_of(early, c, start), want);
    interpret::RunOptions late;
    late.delay_seed = 3, late.poison = true;
    EXPECT_EQ(three_steps_of(early, c, start, late), want);
    const program::Program again = schedule::recompute(plain, {{"layer"}, {}});
    EXPECT_EQ(three_steps_of(schedule::early_update(again), c, start, late), want) << "with recompute";
    const program::Program streamed = schedule::host_states(schedule::early_update(plain), 9000);
    interpret::require_ok(interpret::check(streamed), "streamed");
    EXPECT_EQ(three_steps_of(streamed, c, start, late), want) << "with states in the host's memory";
  }
}

TEST(EarlyUpdate, AWeightMovesBehindItsLastReader) {
  const config::Config c = one_microbatch({});
  const program::Program early =
      schedule::early_update(schedule::build_training_step(c, model::make_parameters(c)));
  std::vector<program::StageId> moved(early.values.size(), -1);
  int updates = 0, behind = 0;
  for (program::StageId s = 0; s < program::StageId(early.stages.size()); ++s) {
    const program::Stage& stage = early.stages[size_t(s)];
    for (const program::Use& use : stage.uses) {
      if (use.value == program::kNoValue) continue;
      EXPECT_EQ(moved[size_t(use.value)], -1) << program::stage_name(stage) << " uses "
                                              << early.values[size_t(use.value)].name << " after its update";
    }
    if (!model::is_update(stage.op)) continue;
    ++updates;
    for (const program::Use& use : stage.uses)
      if (use.value != program::kNoValue && use.access == program::Access::Update)
        moved[size_t(use.value)] = s;
  }
  for (program::StageId s = 0; s < program::StageId(early.stages.size()); ++s)
    if (early.stages[size_t(s)].phase == program::Phase::BackwardWeight)
      for (const program::StageId at : moved) behind += at >= 0 && at < s;
  EXPECT_GT(updates, 10);
  EXPECT_GT(behind, 10) << "no update stands inside the backward";
}

// With little else in memory the gradients are the peak, and all but those of one layer go.
TEST(EarlyUpdate, GradientsAreFreedAtOnce) {
  const config::Config c = one_microbatch(
      {"model.num_layers=8", "model.hidden_size=64", "moe.ffn_hidden_size=64", "train.micro_batch=1"});
  const program::Program plain = schedule::build_training_step(c, model::make_parameters(c));
  int64_t gradients = 0;
  for (const program::Value& v : plain.values)
    if (v.owner == program::Owner::Gradients && v.view_of == program::kNoValue)
      gradients += program::num_bytes(v);
  const interpret::Plan before = interpret::plan(plain);
  const program::Program early = schedule::early_update(plain);
  const interpret::Plan after = interpret::plan(early);
  interpret::require_ok(interpret::check_plan(early, after), "early");
  EXPECT_EQ(after.persistent_bytes, before.persistent_bytes);
  EXPECT_LT(after.arena_bytes, before.arena_bytes - gradients / 2);
}

TEST(EarlyUpdate, TheKeyMovesThem) {
  std::vector<std::string> digests;
  std::vector<int64_t> bytes;
  for (const char* at : {"end", "backward"}) {
    const config::Config c = one_microbatch({fmt::format("optimizer.update_at=\"{}\"", at)});
    runtime::Programs programs(c, {});
    programs.initialize();
    for (int step = 1; step <= 2; ++step) {
      write_random_batch(programs.train(), c, step);
      programs.train().run();
    }
    digests.push_back(digest(snapshot(programs)));
    bytes.push_back(programs.train_plan().plan.arena_bytes);
  }
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_LT(bytes[1], bytes[0]);
}

// A loss that is not finite is known before any weight moves.
TEST(EarlyUpdate, WithoutALossNothingMoves) {
  const config::Config c = one_microbatch({});
  runtime::Programs start(c, train_only());
  start.initialize();
  Runtime runtime(schedule::early_update(schedule::build_training_step(c, start.table())), 1);
  copy_state(start, runtime);
  double* head = static_cast<double*>(runtime.executor().data("final_norm.weight"));
  head[0] = std::numeric_limits<double>::quiet_NaN();
  const std::string before = digest(snapshot(runtime));
  write_random_batch(runtime.executor(), c, 1);
  runtime.executor().run();
  EXPECT_EQ(*static_cast<const int32_t*>(runtime.executor().data("commit")), 0);
  EXPECT_EQ(digest(snapshot(runtime)), before);
}

TEST(EarlyUpdate, WhatNeedsAllGradientsIsRefusedWithTheReason) {
  const auto refused = [](Sets sets) {
    sets.push_back("optimizer.update_at=\"backward\"");
    return pleat::testing::refusal([&] { (void)small_config("", sets); });
  };
  const std::string global = refused({"train.num_microbatches=1"});
  EXPECT_NE(global.find("the norm of all gradients is known only at the end"), std::string::npos) << global;
  const std::string sum = refused({"optimizer.clip_by=\"tensor\""});
  EXPECT_NE(sum.find("train.num_microbatches = 1"), std::string::npos) << sum;
}

}  // namespace pleat::train::testing
