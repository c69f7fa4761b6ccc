// The benchmark of one MoE layer on the GPU, at shapes small enough to look at every number.
#include "bench/layer_bench.h"

#include "cuda/cuda_support.h"

namespace pleat::bench {
namespace {

TEST(CudaLayerBench, RunsWithFiniteGradients) {
  PLEAT_NEEDS_GPU();
  for (const double skew : {0.0, 1.0, 3.0}) {
    LayerOptions options;
    options.repeats = 3;
    options.skew = skew;
    options.check_finite = true;
    const LayerResult r = bench_layer({"small", 1024, 256, 128, 16, 4}, options);
    EXPECT_GT(r.forward_rate, 0);
    EXPECT_GT(r.both_rate, 0);
    EXPECT_GT(r.forward_seconds, 0);
    EXPECT_GT(r.both_seconds, 0);
    EXPECT_EQ(r.operations.size(), skew > 0 ? 21u : 19u);
    if (skew > 0) {
      EXPECT_NEAR(r.max_over_mean, skew, 0.5);
    }
  }
}

// One program, two devices: the same numbers drawn for a forced choice give the same load.
TEST(CudaLayerBench, ForcedLoadIsThatOfTheCpu) {
  PLEAT_NEEDS_GPU();
  LayerOptions options;
  options.repeats = 2;
  options.skew = 2;
  const LayerResult gpu = bench_layer({"small", 2000, 64, 32, 8, 2}, options);
  options.gpu = false;
  EXPECT_NEAR(gpu.max_over_mean, bench_layer({"small", 2000, 64, 32, 8, 2}, options).max_over_mean, 0.01);
}

}  // namespace
}  // namespace pleat::bench
