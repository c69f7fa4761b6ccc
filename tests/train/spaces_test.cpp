// A step whose inputs and results lie in pinned memory, with every copy and every wait of the host a stage, computes the
// same bits as the step it was made from: the CPU runs both.
#include <gtest/gtest.h>

#include "interpret/check/check.h"
#include "schedule/build.h"
#include "schedule/pass/host_copies.h"
#include "schedule/pass/host_waits.h"
#include "train/bench_step.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

std::string spaces_outcome(const program::Program& p, const config::Config& c,
                           const runtime::Programs& start) {
  Runtime runtime(p, 2);
  copy_state(start, runtime);
  for (int step = 1; step <= 3; ++step) {
    write_random_batch(runtime.executor(), c, step);
    runtime.executor().run();
  }
  return digest(snapshot(runtime));
}

TEST(Spaces, CopiesBetweenThemChangeNoBit) {
  const config::Config c = small_config("", {"moe.shared_ffn_hidden_size=8"});
  runtime::Programs start(c, train_only());
  start.initialize();
  const program::Program& plain = start.train_plan().program;
  const program::Program copied = schedule::host_copies(plain);
  EXPECT_GT(copied.stages.size(), plain.stages.size());
  for (const program::Value& v : copied.values)
    EXPECT_EQ(v.space == program::Space::Pinned,
              v.life == program::Life::Input || v.life == program::Life::Result)
        << v.name;
  EXPECT_EQ(spaces_outcome(copied, c, start), spaces_outcome(plain, c, start));
}

TEST(Spaces, EachHasAnArenaOfItsOwn) {
  const config::Config c = small_config();
  const program::Program plain = schedule::build_training_step(c, model::make_parameters(c));
  const interpret::Plan one = interpret::plan(plain), two = interpret::plan(schedule::host_copies(plain));
  EXPECT_EQ(one.pinned.arena_bytes, 0);
  EXPECT_GT(two.pinned.arena_bytes, 0);
  EXPECT_EQ(one.persistent_bytes, two.persistent_bytes);
  // Inputs are dead on the device once they are used up, results are not alive there before they are made.
  EXPECT_LE(two.live_peak_bytes, one.live_peak_bytes);
}

}  // namespace
}  // namespace pleat::train::testing
