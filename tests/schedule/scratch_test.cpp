// Pass scratch: every stage of a GPU's program that needs memory of its own has a value for it.
#include "schedule/pass/scratch.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "cost/stage_work.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "schedule/pass/pass.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using namespace program;

TEST(ScratchPass, EveryStageHasWhatItsKernelAsksFor) {
  std::set<std::string_view> kernels;
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Program bare = train_program(make_config(c.sets)), p = add_scratch(bare);
    ASSERT_TRUE(interpret::check(p).ok()) << interpret::check(p).faults.front();
    ASSERT_EQ(p.stages.size(), bare.stages.size());
    size_t fresh = bare.values.size();
    for (size_t s = 0; s < p.stages.size(); ++s) {
      const int64_t bytes = cost::stage_scratch(bare, bare.stages[s]);
      EXPECT_EQ(p.stages[s].scratch != kNoValue, bytes > 0) << stage_name(p.stages[s]);
      if (bytes == 0) continue;
      EXPECT_EQ(p.stages[s].scratch, static_cast<ValueId>(fresh));
      const Value& v = p.values[fresh++];
      EXPECT_EQ(num_bytes(v), bytes) << v.name;
      EXPECT_EQ(v.owner, Owner::Workspace);
      EXPECT_EQ(v.microbatch, p.stages[s].microbatch);
      EXPECT_EQ(v.layer, p.stages[s].layer);
      kernels.insert(name_of(kernel_of(p.stages[s].op)));
    }
    EXPECT_EQ(fresh, p.values.size());
  }
  for (const char* kernel : {"linear", "attention", "rmsnorm", "router_gate", "router_choose", "router_aux",
                             "dispatch_plan", "embedding", "cross_entropy", "adamw"})
    EXPECT_TRUE(kernels.count(kernel)) << kernel;
}

// All of it costs at most the largest of every lane, and one place for what is small; what other values have stays
// where it was.
TEST(ScratchPass, StagesShareTheRoom) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Program bare = train_program(make_config(c.sets)), p = add_scratch(bare);
    const interpret::Plan before = interpret::plan(bare), made = interpret::plan(p);
    ASSERT_TRUE(interpret::check_plan(p, made).ok());
    for (size_t i = 0; i < bare.values.size(); ++i) ASSERT_EQ(made.offset[i], before.offset[i]);
    std::vector<int64_t> most(p.lanes.size(), 0);
    for (const Stage& s : p.stages)
      if (s.scratch != kNoValue)
        most[size_t(s.lane)] = std::max(most[size_t(s.lane)], padded(num_bytes(p.values[size_t(s.scratch)])));
    EXPECT_LE(made.arena_bytes, before.arena_bytes + std::accumulate(most.begin(), most.end(), int64_t{0}));
    EXPECT_GT(made.arena_bytes, before.arena_bytes) << "a model this small is smaller than one workspace";
  }
}

TEST(ScratchPass, IsThereOnAGpuOnly) {
  const auto scratch_of = [](const Words& sets) {
    const config::Config config = make_config(sets);
    int count = 0;
    for (const Stage& s :
         apply_passes(build_training_step(config, model::make_parameters(config)), config).stages)
      count += s.scratch != kNoValue;
    return count;
  };
  EXPECT_EQ(scratch_of({}), 0);
  EXPECT_GT(scratch_of({"device.kind=\"cuda\""}), 50);
}

}  // namespace
}  // namespace pleat::schedule
