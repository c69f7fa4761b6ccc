// Pass fuse: what it joins, what it leaves, and that the program stays whole.
#include <gtest/gtest.h>

#include <algorithm>

#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"
#include "schedule/schedule_support.h"

namespace pleat::schedule {
namespace {

using program::Op;
using program::Phase;
using program::Program;

Program training_step(const std::vector<std::string>& disabled) {
  const config::Config c =
      make_config({"model.dtype=\"bfloat16\"", "device.kind=\"cuda\"", "moe.shared_ffn_hidden_size=32"});
  return apply_passes(build_training_step(c, model::make_parameters(c)), c, disabled);
}

int64_t count(const Program& p, Op op) {
  return std::count_if(p.stages.begin(), p.stages.end(), [&](const program::Stage& s) { return s.op == op; });
}

TEST(Fuse, JoinsNormGradients) {
  const Program plain = training_step({"fuse"}), fused = training_step({});
  const int64_t norms =
      count(fused, Op::attn_norm_back) + count(fused, Op::mlp_norm_back) + count(fused, Op::final_norm_back);
  EXPECT_GT(norms, 0);
  for (const program::Stage& s : fused.stages) {
    const bool norm = s.op == Op::attn_norm || s.op == Op::mlp_norm || s.op == Op::final_norm;
    EXPECT_FALSE(norm && s.phase != Phase::Forward) << program::stage_name(s);
  }
  EXPECT_EQ(fused.stages.size(), plain.stages.size() - static_cast<size_t>(norms));
}

TEST(Fuse, LeavesAProgramThatChecksAndPlans) {
  const Program fused = training_step({});
  EXPECT_EQ(interpret::check(fused).faults.size(), 0u);
  const interpret::Plan plan = interpret::plan(fused);
  EXPECT_EQ(interpret::check_plan(fused, plan).faults.size(), 0u);
}

TEST(Fuse, IsForNarrowWeightsOnAGpu) {
  const config::Config c = make_config({});
  std::vector<PassReport> reports;
  apply_passes(build_training_step(c, model::make_parameters(c)), c, {}, &reports);
  for (const PassReport& r : reports) EXPECT_NE(r.name, "fuse");
}

}  // namespace
}  // namespace pleat::schedule
