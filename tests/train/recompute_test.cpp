// Recompute is exact: all 2^6 module combinations give the bits of a run without it, step after step.
#include <gtest/gtest.h>

#include "schedule/build.h"
#include "schedule/pass/recompute.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

const char* const kModules[] = {"norm", "activation", "core_attention", "experts", "shared_experts", "layer"};

std::string run(const program::Program& p, const config::Config& c, const runtime::Programs& start,
                int num_steps) {
  Runtime bound(p, 2);
  copy_state(start, bound);
  for (int step = 1; step <= num_steps; ++step) {
    write_random_batch(bound.executor(), c, step);
    bound.executor().run();
  }
  std::string all = digest(snapshot(bound));
  for (int layer = 0; layer < c.model.num_layers; ++layer)
    if (config::is_moe_layer(c, layer)) {
      const auto* load = static_cast<const int64_t*>(bound.executor().data(fmt::format("L{}.load", layer)));
      for (int64_t e = 0; e < c.moe.num_experts; ++e)
        all += fmt::format(" {}", load[e]);  // counted once, replay or not
    }
  return all;
}

}  // namespace

TEST(Recompute, All64CombinationsAreBitwiseEqualOverTenSteps) {
  const config::Config c =
      small_config("", {"model.dtype=\"float32\"", "model.num_layers=3", "model.leading_dense_layers=1",
                        "model.ffn_hidden_size=20", "model.qk_norm=true", "moe.shared_ffn_hidden_size=8",
                        "moe.score=\"sigmoid\"", "moe.load_balancing=[\"aux\",\"bias\"]",
                        "moe.aux_coef=[0.01]", "moe.input_jitter=0.05"});
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  runtime::Programs start(c, choice);
  start.initialize();
  const program::Program plain = schedule::build_training_step(c, start.table());
  const std::string expected = run(plain, c, start, 10);
  int64_t smallest = interpret::plan(plain).arena_bytes;
  for (int mask = 1; mask < 64; ++mask) {
    schedule::RecomputeOptions options;
    for (int i = 0; i < 6; ++i)
      if (mask >> i & 1) options.modules.push_back(kModules[i]);
    const program::Program program = schedule::recompute(plain, options);
    EXPECT_GT(program.stages.size(), plain.stages.size()) << mask;
    smallest = std::min(smallest, interpret::plan(program).arena_bytes);
    ASSERT_EQ(run(program, c, start, 10), expected)
        << "modules " << fmt::format("{}", fmt::join(options.modules, "+"));
  }
  EXPECT_LT(smallest, interpret::plan(plain).arena_bytes);
}

}  // namespace pleat::train::testing
