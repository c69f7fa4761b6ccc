// A step whose loss or gradient is not finite: no bit of the state moves, the culprit is named, three in a
// row end the run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "checkpoint/save.h"
#include "report/jsonl_log.h"
#include "resume/resume_support.h"
#include "train/loop.h"

namespace pleat::train {
namespace {

using testing::faults_at;
using testing::resolved_config;
using testing::tensors_of;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Refused : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_dataset(folder_.at("data"), 2000, 11); }

  static bool says(const std::string& text, std::initializer_list<const char*> words) {
    return std::all_of(words.begin(), words.end(),
                       [&](const char* w) { return text.find(w) != std::string::npos; });
  }

  static float* weight(Trainer& trainer, const std::string& name) {
    for (checkpoint::Target& t : trainer.programs().targets())
      if (t.name == name) return reinterpret_cast<float*>(t.bytes.host().data());
    ADD_FAILURE() << "no tensor " << name;
    return nullptr;
  }

  // The step must be refused without a changed byte; returns the culprit.
  static std::string refused_step(Trainer& trainer) {
    const testing::Tensors before = tensors_of(trainer);
    const RunState was = trainer.run_state();
    const StepOutcome outcome = trainer.step();
    EXPECT_FALSE(outcome.committed);
    EXPECT_EQ(tensors_of(trainer), before);
    EXPECT_EQ(trainer.run_state().step, was.step + 1);
    EXPECT_EQ(trainer.run_state().refused_total, was.refused_total + 1);
    EXPECT_EQ(trainer.run_state().refused_in_row, was.refused_in_row + 1);
    EXPECT_EQ(outcome.record.refused_steps, was.refused_total + 1);
    EXPECT_NE(trainer.run_state().data, was.data);
    return outcome.culprit;
  }

  testing::TemporaryFolder folder_;
};

TEST_F(Refused, ScaleOfTheLoss) {
  Trainer trainer(resolved_config(folder_, 10), {}, faults_at({3}));
  trainer.step(), trainer.step();
  const std::string culprit = refused_step(trainer);
  EXPECT_TRUE(says(culprit, {"mb0", "loss", "non-finite"})) << culprit;
  EXPECT_TRUE(trainer.step().committed);
  EXPECT_EQ(trainer.run_state().refused_in_row, 0);
  EXPECT_EQ(trainer.run_state().refused_total, 1);
}

// A gradient that is not finite, under a loss that is: other weights may have moved by then.
TEST_F(Refused, AStepThatMovesWeightsEarlyThrows) {
  Trainer trainer(resolved_config(folder_, 10,
                                  {"train.num_microbatches=1", "optimizer.clip_by=tensor",
                                   "optimizer.update_at=backward"}),
                  {}, faults_at({2}));
  EXPECT_TRUE(trainer.step().committed);
  try {
    trainer.step();
    FAIL() << "the step was taken";
  } catch (const base::Error& error) {
    EXPECT_EQ(error.code(), base::ExitCode::Numerical);
    EXPECT_TRUE(says(error.what(), {"step 2", "needed is a finite one", "optimizer.update_at"}))
        << error.what();
  }
  EXPECT_EQ(trainer.run_state().step, 1);
}

TEST_F(Refused, WeightOfOneLayer) {
  Trainer trainer(resolved_config(folder_, 10));
  trainer.step();
  const char* name = "layers.1.router.weight";
  weight(trainer, name)[5] = static_cast<float>(kNaN);
  const std::string culprit = refused_step(trainer);
  EXPECT_TRUE(says(culprit, {"mb0", "L1", "router_gate"})) << culprit;
}

// The row of a token that only the second microbatch holds: the first one is clean.
TEST_F(Refused, EmbeddingRowOfTheSecondMicrobatch) {
  const TrainerHooks hooks{[](int64_t, interpret::Executor& executor) {
    auto* first = static_cast<int32_t*>(executor.data("mb0.tokens"));
    auto* second = static_cast<int32_t*>(executor.data("mb1.tokens"));
    std::replace(first, first + 64, 'e', 'f');
    second[17] = 'e';
  }};
  Trainer trainer(resolved_config(folder_, 10), {}, hooks);
  trainer.step();
  weight(trainer, "embedding.weight")[int('e') * 32 + 3] = std::numeric_limits<float>::infinity();
  const std::string culprit = refused_step(trainer);
  EXPECT_TRUE(says(culprit, {"mb1", "embedding"})) << culprit;
}

TEST_F(Refused, AuxiliaryLossOnly) {
  const TrainerHooks hooks{[](int64_t step, interpret::Executor& executor) {
    if (step == 2) static_cast<double*>(executor.data("norm"))[3] = kNaN;
  }};
  Trainer trainer(resolved_config(folder_, 10), {}, hooks);
  trainer.step();
  const std::string culprit = refused_step(trainer);
  EXPECT_TRUE(says(culprit, {"mb0", "L1", "router_aux"})) << culprit;
}

// Tiny embeddings under a tiny epsilon: the first norm multiplies the gradient by 1e12 on its way to the
// embedding, and a large scale of the loss overflows there and nowhere before.
TEST_F(Refused, GradientOnItsWayToTheEmbedding) {
  const TrainerHooks hooks{
      [](int64_t, interpret::Executor& executor) { static_cast<double*>(executor.data("norm"))[0] *= 1e29; }};
  Trainer trainer(resolved_config(folder_, 10, {"model.norm_eps=1e-30"}), {}, hooks);
  float* table = weight(trainer, "embedding.weight");
  for (int i = 0; i < 257 * 32; ++i) table[i] *= 1e-11f;
  const std::string culprit = refused_step(trainer);
  EXPECT_TRUE(says(culprit, {"mb0", "L0", "attn_norm"})) << culprit;
}

// A fault that is gone when the step is run again costs nothing: the step counts, with the bits of an
// undisturbed one.
TEST_F(Refused, FaultThatDoesNotRepeat) {
  Trainer undisturbed(resolved_config(folder_, 10));
  int calls = 0;
  const TrainerHooks hooks{[&calls](int64_t step, interpret::Executor& executor) {
    if (step == 2 && calls++ == 0) static_cast<double*>(executor.data("norm"))[0] = kNaN;
  }};
  Trainer trainer(resolved_config(folder_, 10), {}, hooks);
  for (int step = 1; step <= 4; ++step) {
    const StepOutcome expected = undisturbed.step(), outcome = trainer.step();
    EXPECT_TRUE(outcome.committed);
    EXPECT_EQ(outcome.culprit.empty(), step != 2);
    EXPECT_EQ(outcome.record.loss, expected.record.loss);
    EXPECT_EQ(outcome.record.grad_norm, expected.record.grad_norm);
    EXPECT_EQ(trainer.state_sha256(), undisturbed.state_sha256()) << "step " << step;
  }
  EXPECT_EQ(calls, 2);
}

// A weight that is NaN in the checkpoint makes every step fail: the third one ends the run, the log says so,
// and nothing new was saved.
TEST_F(Refused, ThreeInARowEndTheRun) {
  const config::Config config = resolved_config(folder_, 10);
  base::PosixVfs vfs;
  {
    Trainer trainer(config);
    trainer.step();
    weight(trainer, "final_norm.weight")[0] = static_cast<float>(kNaN);
    std::filesystem::create_directories(config.checkpoint.dir);
    checkpoint::save(vfs, config.checkpoint.dir, trainer.state(), {});
  }
  LoopOptions options;
  options.quiet = true;
  const LoopResult result = run_training(config, options);
  EXPECT_EQ(result.code, base::ExitCode::Numerical);
  EXPECT_EQ(result.step, 4);
  const auto log = report::read_log(folder_.at("run/metrics.jsonl"));
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log.back().refused_steps, 3);
  EXPECT_TRUE(std::isnan(log.back().loss));
  EXPECT_EQ(checkpoint::find_newest(vfs, config.checkpoint.dir).newest->step(), 1);
}

TEST_F(Refused, HiddenSwitchOfTheBinary) {
  pleat::testing::write_file(folder_.at("run.toml"),
                             testing::run_toml(folder_.at("data"), folder_.at("run"), 4));
  const pleat::testing::Ended ended =
      pleat::testing::run_pleat(folder_.path(), {"train", folder_.at("run.toml"), "--fault-step", "2"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("step 2 refused, no weight was touched"), std::string::npos) << ended.err;
  EXPECT_TRUE(says(ended.err, {"mb0", "loss"})) << ended.err;
  const auto log = report::read_log(folder_.at("run/metrics.jsonl"));
  ASSERT_EQ(log.size(), 4u);
  EXPECT_EQ(log[0].refused_steps, 0);
  EXPECT_EQ(log[3].refused_steps, 1);
  const pleat::testing::Ended stopped = pleat::testing::run_pleat(
      folder_.path(), {"train", folder_.at("run.toml"), "--quiet", "--fault-step", "2", "--set",
                       "log.run_dir=" + folder_.at("strict"), "--set", "train.max_refused_steps=1"});
  EXPECT_EQ(stopped.code, 77) << stopped.err;
}

}  // namespace
}  // namespace pleat::train
