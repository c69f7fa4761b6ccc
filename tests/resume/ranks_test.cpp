// The same training run on one rank, on thread ranks and on MPI processes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "report/jsonl_log.h"
#include "resume/ranks_support.h"
#include "resume/resume_support.h"
#include "support/refusal.h"
#include "train/loop.h"

namespace pleat::train {
namespace {

using testing::Ranks;
using testing::resolved_config;

class RankRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::write_dataset(folder_.at("data"), 4000, 7);
    testing::write_dataset(folder_.at("valid"), 32 * 7 + 9, 8);
  }

  std::vector<std::string> sets(const std::string& run, const std::vector<std::string>& more) const {
    std::vector<std::string> out = {fmt::format("log.run_dir=\"{}\"", folder_.at(run)),
                                    fmt::format("data.valid=\"{}\"", folder_.at("valid")),
                                    "model.vocab_size=264",
                                    "train.num_microbatches=4",
                                    "train.eval_every=2",
                                    "train.eval_batches=3"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }

  std::vector<report::StepRecord> train(const std::string& run, int ranks,
                                        const std::vector<std::string>& more) {
    LoopOptions options;
    options.quiet = true;
    options.ranks = ranks;
    const config::Config config =
        config::parse(testing::run_toml(folder_.at("data"), "unused", 3), sets(run, more));
    const LoopResult result = run_training(config, options);
    EXPECT_EQ(result.code, base::ExitCode::Done);
    digest_ = result.state_sha256;
    return report::read_log(folder_.at(run) + "/metrics.jsonl");
  }

  static void expect_near(const std::vector<report::StepRecord>& a, const std::vector<report::StepRecord>& b,
                          double bound) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const auto near = [&](double x, double y, const char* what) {
        EXPECT_LE(std::abs(x - y), bound * std::abs(x)) << what << " of step " << i + 1;
      };
      near(a[i].loss, b[i].loss, "loss");
      near(a[i].grad_norm, b[i].grad_norm, "norm");
      for (const auto& [name, value] : a[i].aux) near(value, b[i].aux.at(name), name.c_str());
      ASSERT_EQ(a[i].eval.has_value(), b[i].eval.has_value());
      if (a[i].eval) {
        near(a[i].eval->loss, b[i].eval->loss, "evaluation");
        near(a[i].eval->bits_per_byte, b[i].eval->bits_per_byte, "bits per byte");
      }
      ASSERT_EQ(a[i].health.size(), b[i].health.size());
      for (size_t l = 0; l < a[i].health.size(); ++l) {
        EXPECT_EQ(a[i].health[l].layer, b[i].health[l].layer);
        if (bound < 1e-8) {
          EXPECT_EQ(a[i].health[l].load, b[i].health[l].load);
          near(a[i].health[l].logit_rms, b[i].health[l].logit_rms, "rms of logits");
        }
      }
    }
  }

  testing::TemporaryFolder folder_;
  std::string digest_;
};

const std::vector<std::string> kFoldedAxes = {"parallel.tp=2", "parallel.pp=2", "parallel.ep=2"};

TEST_F(RankRuns, DoublesEqualOneRank) {
  const std::vector<std::string> wide = {"model.dtype=\"float64\""};
  const auto one = train("one", 0, wide);
  for (const auto& [ranks, layout] : std::vector<std::pair<int, std::vector<std::string>>>{
           {4, {"parallel.tp=2", "parallel.ep=4"}},
           {4, {"parallel.pp=2", "parallel.ep=2"}},
           {4, {"parallel.cp=2", "parallel.tp=2"}},
           {4, {"parallel.cp=4", "parallel.context=\"ring\""}},
           {8, kFoldedAxes}}) {
    std::vector<std::string> more = wide;
    more.insert(more.end(), layout.begin(), layout.end());
    const std::string run = fmt::format("run_{}_{}", ranks, layout[0]);
    expect_near(one, train(run, ranks, more), 1e-10);
  }
}

// Floats: docs/numerics.md, section 8.
TEST_F(RankRuns, FloatsStayWithinTheBound) {
  expect_near(train("one", 0, {}), train("four", 4, {"parallel.tp=2", "parallel.ep=4"}), 1e-4);
}

TEST_F(RankRuns, StopAndResumeOnOtherRanks) {
  const std::vector<std::string> wide = {"model.dtype=\"float64\""};
  const auto one = train("one", 0, wide);
  LoopOptions options;
  options.quiet = true;
  options.ranks = 4;
  options.stop_after = 1;
  std::vector<std::string> layout = {"model.dtype=\"float64\"", "parallel.pp=2", "parallel.ep=2"};
  EXPECT_EQ(
      run_training(config::parse(testing::run_toml(folder_.at("data"), "unused", 3), sets("two", layout)),
                   options)
          .code,
      base::ExitCode::Retry);
  expect_near(one, train("two", 2, {"model.dtype=\"float64\"", "parallel.tp=2"}), 1e-10);
}

// A step with a number that is not finite is refused by all ranks, and the culprit has a name.
TEST_F(RankRuns, RefusedStepsAreRefusedByAll) {
  const config::Config config =
      resolved_config(folder_, 4, {"train.num_microbatches=4", "parallel.pp=2", "parallel.ep=2"});
  Ranks ranks(config, 4);
  ranks.each([&](runtime::Crew& crew) {
    // One replica's loss only.
    TrainerHooks hooks;
    if (crew.setup().rank() == 2) hooks = testing::faults_at({2});
    Trainer trainer(config, {}, hooks, &crew);
    const std::string before = (trainer.step(), trainer.state_sha256());
    const StepOutcome bad = trainer.step();
    EXPECT_FALSE(bad.committed);
    EXPECT_NE(bad.culprit.find("rank 2: "), std::string::npos) << bad.culprit;
    EXPECT_EQ(trainer.run_state().refused_total, 1);
    EXPECT_TRUE(trainer.step().committed);
    EXPECT_NE(trainer.state_sha256(), before);
  });
}

TEST_F(RankRuns, WhatDoesNotFitIsSaidBeforeTheStart) {
  const auto says = [&](int ranks, const std::vector<std::string>& more) {
    return pleat::testing::message_of([&] { train("bad", ranks, more); });
  };
  EXPECT_NE(says(3, {}).find("train.num_microbatches = 4"), std::string::npos);
  EXPECT_NE(says(4, {"parallel.tp=3"}).find("4 ranks cannot be laid out as tp=3"), std::string::npos);
  EXPECT_NE(says(0, {"parallel.tp=2"}).find("1 rank cannot be laid out as tp=2"), std::string::npos);
  EXPECT_NE(says(8, {"parallel.tp=8"}).find("parallel.tp"), std::string::npos);
}

// Threads and processes give the same bits.
TEST_F(RankRuns, ProcessesOverMpiAndTcp) {
  std::vector<std::pair<std::string, std::string>> starts = {{"tcp", PLEAT_BINARY " launch --ranks 4"}};
  if (!std::string(PLEAT_MPIRUN).empty())
    starts.emplace_back("mpi", fmt::format(fmt::runtime(PLEAT_MPIRUN), 4) + " " PLEAT_BINARY);
  testing::write_dataset(folder_.at("more"), 4000, 7);
  pleat::testing::write_file(folder_.at("run.toml"), testing::run_toml(folder_.at("data"), "unused", 3));
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallel.pp=2", "parallel.ep=2"},
           {"parallel.cp=4", "parallel.context=\"ring\"", "parallel.ep=2"}}) {
    SCOPED_TRACE(layout[0]);
    const auto threads = train("threads " + layout[0], 4, layout);
    const std::string digest = digest_;
    for (const auto& [carrier, start] : starts) {
      SCOPED_TRACE(carrier);
      const std::string run = carrier + " " + layout[0];
      std::string command = start + " train " + folder_.at("run.toml") + " --quiet";
      for (const std::string& set : sets(run, layout)) command += " --set '" + set + "'";
      command += " > " + folder_.at("said") + " 2>&1 < /dev/null";
      ASSERT_EQ(std::system(command.c_str()), 0) << pleat::testing::read_file(folder_.at("said"));
      const auto processes = report::read_log(folder_.at(run) + "/metrics.jsonl");
      expect_near(threads, processes, 0);
      const std::string summary = pleat::testing::read_file(folder_.at(run) + "/summary.json");
      EXPECT_NE(summary.find(digest), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace pleat::train
