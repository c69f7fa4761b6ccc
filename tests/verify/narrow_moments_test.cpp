// Moments that are stored in bfloat16: two layouts may part by the roundings of what is stored, and the bound says so
// from the table of states; the bound of float32 moments does not hold for them.
#include <gtest/gtest.h>

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
  for (auto field : {&config::OptimizerConfig::moment1_dtype, &config::OptimizerConfig::moment2_dtype}) {
    SCOPED_TRACE(field == &config::OptimizerConfig::moment1_dtype ? "first" : "second");
    config::Config narrow = wide;
    narrow.optimizer.*field = "bfloat16";
    const LayoutRun one = reference_of(c, narrow, each_step), two = run_layout(narrow, c.mesh, {}, each_step);
    const BoundReport report = inside_bound(narrow, float32_rounding(narrow), kappa, one, two);
    EXPECT_EQ(report.fault, "");
    EXPECT_GT(report.weight_share, 0.01);
    EXPECT_NE(inside_bound(wide, float32_rounding(wide), kappa, one, two).fault, "")
        << "no rounding fell to the other side: nothing was tested";
  }
}

}  // namespace
}  // namespace pleat::verify
