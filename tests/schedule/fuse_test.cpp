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

Program training_step(const std::vector<std::string>& disabled, const std::string& more = "") {
  std::vector<std::string> settings = {"model.dtype=\"bfloat16\"", "device.kind=\"cuda\"",
                                       "moe.shared_ffn_hidden_size=32"};
  if (!more.empty()) settings.push_back(more);
  const config::Config c = make_config(settings);
  return apply_passes(build_training_step(c, model::make_parameters(c)), c, {.disabled = disabled});
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

TEST(Fuse, JoinsTheGradientsOfARotationWithNorms) {
  const std::string norms = "model.qk_norm=true";
  const Program plain = training_step({"fuse"}, norms), fused = training_step({}, norms);
  int64_t weights = 0;
  for (const program::Stage& s : plain.stages)
    weights += s.op == Op::qk_rope && s.phase == Phase::BackwardWeight;
  ASSERT_GT(weights, 0);
  EXPECT_EQ(count(fused, Op::qk_rope_back), weights);
  for (const program::Stage& s : fused.stages)
    EXPECT_FALSE(s.op == Op::qk_rope && s.phase != Phase::Forward) << program::stage_name(s);
  EXPECT_EQ(interpret::check(fused).faults.size(), 0u);
  // Without norms there is nothing to join.
  EXPECT_EQ(count(training_step({}), Op::qk_rope_back), 0);
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
  apply_passes(build_training_step(c, model::make_parameters(c)), c, {.reports = &reports});
  for (const PassReport& r : reports) EXPECT_NE(r.name, "fuse");
}

}  // namespace
}  // namespace pleat::schedule
