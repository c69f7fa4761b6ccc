// States that lie in the host's memory and stream through the update: the same bits as states on the device, and a plan that
// has room for two buckets of them.
#include "schedule/pass/host_states.h"

#include <gtest/gtest.h>

#include "interpret/check/check.h"
#include "interpret/plan/pack.h"
#include "interpret/plan/plan.h"
#include "model/state.h"
#include "schedule/build.h"
#include "support/refusal.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

using program::Op;
using program::Space;

config::Config float_model(std::vector<std::string> sets) {
  sets.insert(sets.begin(), "model.dtype=\"float32\"");
  return small_config("", sets);
}

std::string outcome(const program::Program& p, const config::Config& c, const runtime::Programs& start,
                    const interpret::RunOptions& run = {}) {
  Runtime runtime(p, 2);
  copy_state(start, runtime);
  for (int step = 1; step <= 3; ++step) {
    write_random_batch(runtime.executor(), c, step);
    runtime.executor().run(run);
  }
  Snapshot state = snapshot(runtime);
  // Not the views of pieces.
  std::erase_if(state, [&](const auto& entry) {
    return runtime.program().values[size_t(runtime.executor().find(entry.first))].view_of !=
           program::kNoValue;
  });
  return digest(state);
}

const std::vector<std::string> kCodes = {"optimizer.moment1_dtype=\"block8\"",
                                         "optimizer.moment2_dtype=\"block8\""};

TEST(HostStates, BucketsOfAnySizeChangeNoBit) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{}, {"optimizer.moment1_dtype=\"bfloat16\""}, kCodes}) {
    const config::Config c = float_model(sets);
    runtime::Programs start(c, train_only());
    start.initialize();
    const program::Program& plain = start.train_plan().program;
    const std::string want = outcome(plain, c, start);
    // Pieces of 1024 elements, some tensors to a bucket, and all in one.
    for (const int64_t bytes : {int64_t{1}, int64_t{9000}, int64_t{1} << 30}) {
      const program::Program moved = schedule::host_states(plain, bytes);
      interpret::require_ok(interpret::check(moved), "moved");
      for (const program::Value& v : moved.values)
        if (v.owner == program::Owner::Optimizer) {
          EXPECT_EQ(v.space, Space::Pinned) << v.name;
        }
      EXPECT_EQ(outcome(moved, c, start), want) << bytes;
      interpret::RunOptions late;
      late.delay_seed = 5, late.poison = true;
      EXPECT_EQ(outcome(moved, c, start, late), want) << bytes;
    }
  }
}

// What is there beside the plan of a step without states: two buckets.
TEST(HostStates, TheDeviceHasRoomForTwoBuckets) {
  for (const std::vector<std::string>& sets : {std::vector<std::string>{}, kCodes}) {
    const config::Config c = float_model(sets);
    const program::Program plain = schedule::build_training_step(c, model::make_parameters(c));
    int64_t states = 0;
    for (const program::Value& v : plain.values)
      if (v.owner == program::Owner::Optimizer) states += interpret::padded_bytes(v);
    const int64_t bucket = 9000;
    const program::Program moved = schedule::host_states(plain, bucket);
    const interpret::Plan before = interpret::plan(plain), after = interpret::plan(moved);
    interpret::require_ok(interpret::check_plan(moved, after), "moved");
    EXPECT_EQ(after.pinned.persistent_bytes, states);
    EXPECT_EQ(after.persistent_bytes, before.persistent_bytes - states);
    EXPECT_GT(states, 3 * bucket);
    // As many bytes as two buckets, padded as values are; the gradients are there at the same time.
    int64_t most = 0, num_copies = 0;
    for (const program::Value& v : moved.values)
      if (v.name.find(".device") != std::string::npos) ++num_copies;
    for (const int64_t live : after.live) most = std::max(most, live);
    EXPECT_GT(num_copies, 20);
    EXPECT_LE(after.arena_bytes, before.arena_bytes - states + 2 * bucket + 4096);
    // Both ways at once: a copy in waits for nothing that the copies out beside it do.
    int ins = 0, outs = 0, waits = 0;
    for (const program::Stage& s : moved.stages) {
      ins += s.op == Op::copy_in, outs += s.op == Op::copy_out;
      for (const program::StageId before_it : s.after)
        waits += s.op == Op::copy_in && moved.stages[static_cast<size_t>(before_it)].op == Op::copy_out;
      if (s.op == Op::copy_in || s.op == Op::copy_out) {
        EXPECT_EQ(moved.lanes[static_cast<size_t>(s.lane)].name, s.op == Op::copy_in ? "h2d" : "d2h");
      }
    }
    EXPECT_EQ(ins, outs);
    EXPECT_EQ(ins, num_copies);
    EXPECT_GE(waits, 2);
  }
}

TEST(HostStates, BucketsWithoutNumberAreRefused) {
  const config::Config c = float_model({"model.vocab_size=1000000"});
  const program::Program plain = schedule::build_training_step(c, model::make_parameters(c));
  const std::string said =
      pleat::testing::refusal([&] { (void)schedule::host_states(plain, int64_t{1} << 10); });
  EXPECT_NE(said.find("optimizer.state_bucket_mb"), std::string::npos) << said;
  EXPECT_NE(said.find("needed are at most 16384"), std::string::npos) << said;
}

TEST(HostStates, TheKeyMovesThemInEveryProgram) {
  std::vector<std::string> digests;
  for (const char* space : {"device", "host"}) {
    const config::Config c = float_model({std::string("optimizer.state_space=\"") + space + "\""});
    runtime::Programs programs(c, {});
    programs.initialize();
    for (int step = 1; step <= 2; ++step) {
      write_random_batch(programs.train(), c, step);
      programs.train().run();
    }
    digests.push_back(digest(snapshot(programs)));
  }
  EXPECT_EQ(digests[0], digests[1]);
}

}  // namespace
}  // namespace pleat::train::testing
