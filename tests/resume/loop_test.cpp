// Training with train.order = "loop": the bits of 1f1b, whatever lanes, layout and memory do, over stops and refused
// steps.
#include <gtest/gtest.h>

#include "resume/resume_support.h"
#include "train/loop.h"

namespace pleat::train {
namespace {

using testing::resolved_config;

class LoopRuns : public testing::SavedRuns {
 protected:
  void SetUp() override { testing::write_dataset(folder_.at("data"), 4000, 7); }

  config::Config config(const std::string& order, std::vector<std::string> sets = {}) {
    sets.insert(sets.begin(), {"train.num_microbatches=6", "train.order=\"" + order + "\""});
    return resolved_config(folder_, 4, sets);
  }
  std::vector<std::string> run(const config::Config& c, const interpret::RunOptions& options = {}) {
    runtime::ProgramChoice choice;
    choice.evaluate = false;
    Trainer trainer(c, choice);
    std::vector<std::string> out;
    for (int step = 0; step < 3; ++step) {
      trainer.step(options);
      out.push_back(trainer.state_sha256());
    }
    return out;
  }
};

}  // namespace

TEST_F(LoopRuns, HaveTheBitsOfTheLongerProgram) {
  for (const std::vector<std::string>& sets : std::vector<std::vector<std::string>>{
           {},
           // inputs that nobody reads, and memory for little else
           {"moe.input_jitter=0", "moe.load_balancing=[\"none\"]", "moe.aux_coef=", "moe.bias_update_rate=",
            "moe.z_coef=0", "model.hidden_size=64", "moe.ffn_hidden_size=48"},
           {"moe.shared_ffn_hidden_size=8", "device.threads=2"},
           {"recompute.modules=[\"layer\"]"},
           {"offload.modules=[\"layer\"]", "offload.min_bytes=0"},
           {"moe.load_balancing=[\"bias\",\"aux\",\"global_aux\"]", "moe.aux_coef=[0.01,0.02]"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(sets, " ")));
    const std::vector<std::string> expected = run(config("1f1b", sets));
    interpret::RunOptions options;
    options.poison = true;
    options.delay_seed = 3;
    EXPECT_EQ(run(config("loop", sets), options), expected);
    if (!sets.empty()) continue;
    EXPECT_EQ(run(config("loop", sets)), expected);
    options.in_order = true;
    EXPECT_EQ(run(config("loop", sets), options), expected);
  }
}

TEST_F(LoopRuns, HaveThemOnSeveralRanks) {
  for (const auto& [ranks, sets] : std::vector<std::pair<int, std::vector<std::string>>>{
           {2, {"train.num_microbatches=8"}},
           {2, {"parallel.tp=2"}},
           {2, {"parallel.cp=2", "parallel.context=\"ring\""}},
           {2, {"parallel.ep=2", "parallel.exchange=\"windows\"", "train.num_microbatches=8"}},
           {4, {"parallel.tp=2", "parallel.ep=4", "train.num_microbatches=8"}}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(sets, " ")));
    std::string digest[2];
    for (const bool loops : {false, true}) {
      std::vector<std::string> all = {
          "train.num_microbatches=6", fmt::format("train.order=\"{}\"", loops ? "loop" : "1f1b"),
          fmt::format("log.run_dir=\"{}\"",
                      folder_.at(fmt::format("{}{}", ranks, sets[0]) + (loops ? "loop" : "plain")))};
      all.insert(all.end(), sets.begin(), sets.end());
      LoopOptions options;
      options.quiet = true;
      options.ranks = ranks;
      const LoopResult result =
          run_training(config::parse(testing::run_toml(folder_.at("data"), "unused", 3), all), options);
      EXPECT_EQ(result.code, base::ExitCode::Done);
      digest[loops] = result.state_sha256;
    }
    EXPECT_EQ(digest[0], digest[1]);
  }
}

TEST_F(LoopRuns, GoOnFromEachOther) {
  Trainer straight(config("1f1b"));
  const std::vector<std::string> expected = digests(straight, 4);
  Trainer first(config("loop"));
  first.step();
  Trainer second(config("1f1b"));
  EXPECT_FALSE(second.restore(saved(first.state())).empty());  // train.order is named
  second.step();
  Trainer third(config("loop"));
  third.restore(saved(second.state()));
  third.step();
  third.step();
  EXPECT_EQ(third.state_sha256(), expected[3]);
}

// The step is run again with a look at every value, each microbatch with rows of its own, and the data moves on.
TEST_F(LoopRuns, ARefusedStepIsThatOfTheLongerProgram) {
  const auto outcome = [&](const std::string& order) {
    Trainer trainer(config(order), {}, testing::faults_at({2}));
    trainer.step();
    const StepOutcome refused = trainer.step();
    EXPECT_FALSE(refused.committed);
    EXPECT_NE(refused.culprit, "");
    trainer.step();
    return refused.culprit + trainer.state_sha256();
  };
  EXPECT_EQ(outcome("loop"), outcome("1f1b"));
}

// Every pass has a span.
TEST_F(LoopRuns, TheTimelineHasEveryPass) {
  Trainer trainer(config("loop"));
  interpret::RunOptions options;
  options.timing = true;
  trainer.step(options);
  const interpret::Executor& executor = trainer.programs().train();
  std::map<program::StageId, int> spans;
  int64_t end = 0;
  for (const interpret::Span& span : executor.timeline().spans) {
    EXPECT_LE(span.start_ns, span.end_ns);
    ++spans[span.stage];
    end = std::max(end, span.end_ns);
  }
  for (program::StageId s = 0; s < static_cast<program::StageId>(executor.program().stages.size()); ++s)
    EXPECT_EQ(spans[s], executor.program().stages[static_cast<size_t>(s)].microbatch == 1 ? 4 : 1);
}

}  // namespace pleat::train
