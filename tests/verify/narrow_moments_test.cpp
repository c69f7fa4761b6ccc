// Moments that are stored in bfloat16: two layouts may part by the roundings of what is stored, and the bound says so
// from the table of states; the bound of float32 moments does not hold for them.
#include <gtest/gtest.h>

#include "train/learning_rate.h"
#include "verify/grid.h"
#include "verify/rounding_bound.h"

namespace pleat::verify {
namespace {

TEST(NarrowMoments, LayoutsStayInsideTheBoundOfTheirFormats) {
  GridCase c;
  c.mesh.dp = c.mesh.edp = 2;
  c.mesh.bucket_bytes = 6000;
  c.num_microbatches = 4;
  RunOptions each_step;
  each_step.weights_each_step = true;
  each_step.num_steps = 5;
  const config::Config wide = grid_config(c, "float32");
  const Conditioning kappa =
      conditioning(grid_config(c, "float64"), [&](const config::Config& config, RunOptions options) {
        options.num_steps = each_step.num_steps;
        return reference_of(c, config, options);
      });
  // A last place seldom turns a code, whose step is wide: there a change as large as one is planted.
  struct Formats {
    const char *first, *second;
    bool turns;
  };
  for (const auto& [first, second, turns] :
       {Formats{"bfloat16", "unset", true}, {"unset", "bfloat16", true}, {"block8", "block8", false}}) {
    SCOPED_TRACE(std::string(first) + " " + second);
    config::Config narrow = wide;
    narrow.optimizer.moment1_dtype = first, narrow.optimizer.moment2_dtype = second;
    const LayoutRun one = reference_of(c, narrow, each_step), two = run_layout(narrow, c.mesh, {}, each_step);
    const BoundReport report = inside_bound(narrow, float32_rounding(narrow), kappa, one, two);
    EXPECT_EQ(report.fault, "");
    EXPECT_GT(report.weight_share, 0.01);
    const auto fault_of = [&](const config::Config& config, double steps) {
      LayoutRun moved = two;
      for (double& w : moved.steps.back().weights.at("layers.0.attn.qkv.weight"))
        w += steps * train::learning_rate(config, each_step.num_steps);
      return inside_bound(config, float32_rounding(config), kappa, one, moved).fault;
    };
    if (turns) {
      EXPECT_NE(fault_of(wide, 0), "") << "no rounding fell to the other side: nothing was tested";
    } else {
      EXPECT_EQ(fault_of(narrow, 0.1), "") << "what one code may do";
      EXPECT_NE(fault_of(wide, 0.1), "");
      EXPECT_NE(fault_of(narrow, 50), "");
    }
  }
}

}  // namespace
}  // namespace pleat::verify
