// The mistakes layouts are made of, planted, and named by the comparison.
#include <gtest/gtest.h>

#include "verify/grid.h"

namespace pleat::verify {
namespace {

std::string verdict_with(Fault fault) {
  GridCase c;
  c.mesh.tp = 2, c.mesh.dp = 2, c.mesh.ep = 2, c.mesh.edp = 2;
  c.mesh.bucket_bytes = 0;
  c.num_microbatches = 2;
  const config::Config config = grid_config(c, "float64");
  RunOptions options;
  options.fault = fault;
  return compare(reference_of(c, config), run_layout(config, c.mesh, {}, options),
                 model::make_parameters(config))
      .verdict(1e-10);
}

TEST(PlantedFault, NoneIsFoundWhereNoneIs) { EXPECT_EQ(verdict_with(Fault::None), ""); }

TEST(PlantedFault, ExpertGradientsScaledByTheExpertRanks) {
  const std::string found = verdict_with(Fault::ScaleExpertGradients);
  EXPECT_TRUE(found.starts_with("gradients of experts are 2 times the reference's length")) << found;
  EXPECT_EQ(found.find("attention"), std::string::npos) << found;
}

TEST(PlantedFault, OneReductionDropped) {
  const std::string found = verdict_with(Fault::DropReduction);
  EXPECT_NE(found.find("gradients of embedding"), std::string::npos) << found;
  EXPECT_EQ(found.find("experts"), std::string::npos) << found;
}

TEST(PlantedFault, OneRankLeftOutOfTheNorm) {
  const std::string found = verdict_with(Fault::SkipNorm);
  EXPECT_TRUE(found.starts_with("the gradient norm differs")) << found;
}

}  // namespace
}  // namespace pleat::verify
