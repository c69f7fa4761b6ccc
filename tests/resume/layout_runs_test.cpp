// Training runs that must not depend on how ranks are numbered, nor on how much room routed rows have.
#include <gtest/gtest.h>

#include <mutex>

#include "base/error.h"
#include "resume/ranks_support.h"
#include "resume/resume_support.h"

namespace pleat::train {
namespace {

using testing::Ranks;

struct RunResult {
  std::string digest;
  std::vector<double> losses, norms;
  int reruns = 0;
  std::string overflow;  // of the first step that was run again
};

class LayoutRuns : public ::testing::Test {
 protected:
  void SetUp() override { testing::write_dataset(folder_.at("data"), 4000, 7); }

  RunResult train(int num_ranks, std::vector<std::string> sets, int steps = 4) {
    sets.insert(sets.end(), {"model.vocab_size=264", "train.num_microbatches=4"});
    const config::Config config = testing::resolved_config(folder_, steps, sets);
    Ranks ranks(config, num_ranks);
    RunResult out;
    ranks.each([&](runtime::Crew& crew) {
      Trainer trainer(config, {}, {}, &crew);
      for (int s = 0; s < steps; ++s) {
        const StepOutcome step = trainer.step();
        EXPECT_TRUE(step.committed);
        if (!crew.leads()) continue;
        out.losses.push_back(step.record.loss);
        out.norms.push_back(step.record.grad_norm);
        out.reruns += !step.overflow.empty();
        if (out.overflow.empty()) out.overflow = step.overflow;
      }
      const std::string digest = trainer.state_sha256();
      if (crew.leads()) out.digest = digest;
    });
    return out;
  }

  testing::TemporaryFolder folder_;
};

void expect_same(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
}

const std::vector<std::vector<std::string>> kFolded = {{"parallel.tp=2", "parallel.pp=2", "parallel.ep=2"},
                                                       {"parallel.cp=2", "parallel.pp=2", "parallel.ep=2"}};

std::vector<std::string> with_order(std::vector<std::string> sets, const char* order) {
  sets.push_back(fmt::format("parallel.order=\"{}\"", order));
  return sets;
}

// The numbers of ranks move; who meets whom does not, nor do sums, and so bits.
TEST_F(LayoutRuns, WhereThePipelineStandsInTheOrderChangesNoBit) {
  for (const std::vector<std::string>& axes : kFolded) {
    const RunResult usual = train(8, axes, 3);
    for (const char* order : {"tp-cp-ep-pp-dp", "pp-tp-cp-ep-dp"}) {
      SCOPED_TRACE(order);
      expect_same(usual, train(8, with_order(axes, order), 3));
    }
  }
}

// Other ranks of attention make an expert group: rows meet in other sums.
TEST_F(LayoutRuns, AnotherFoldIsTheSameInDouble) {
  for (std::vector<std::string> axes : kFolded) {
    axes.push_back("model.dtype=\"float64\"");
    const RunResult usual = train(8, axes, 3);
    for (const char* order : {"dp-ep-cp-tp-pp", "ep-dp-tp-cp-pp"}) {
      SCOPED_TRACE(order);
      const RunResult run = train(8, with_order(axes, order), 3);
      EXPECT_NE(run.digest, "");
      for (size_t s = 0; s < usual.losses.size(); ++s) {
        EXPECT_NEAR(run.losses[s], usual.losses[s], 1e-10 * usual.losses[s]);
        EXPECT_NEAR(run.norms[s], usual.norms[s], 1e-10 * usual.norms[s]);
      }
    }
  }
}

// A step that does not fit is refused and run again: the run is that of a budget which always fits.
TEST_F(LayoutRuns, StepsPastTheirBudgetAreRunAgain) {
  for (const std::vector<std::string>& axes :
       std::vector<std::vector<std::string>>{{"parallel.ep=2"},
                                             {"parallel.ep=4", "parallel.dispatcher=\"allgather\""},
                                             {"parallel.ep=2", "parallel.pp=2"},
                                             {"parallel.tp=2", "parallel.ep=2", "parallel.etp=2"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(axes, " ")));
    std::vector<std::string> tight = axes;
    tight.insert(tight.end(), {"moe.token_budget=1.05", "moe.overflow=\"rerun\""});
    const RunResult roomy = train(4, axes), again = train(4, tight);
    EXPECT_EQ(roomy.reruns, 0);
    EXPECT_GT(again.reruns, 0);
    EXPECT_NE(again.overflow.find("moe.token_budget = 1.05 has room for"), std::string::npos)
        << again.overflow;
    expect_same(roomy, again);
  }
}

// Some steps fit and some do not: both programs work on one state.
TEST_F(LayoutRuns, StepsThatFitAreNotRunAgain) {
  const RunResult roomy = train(4, {"parallel.ep=2"}, 8);
  int mixed = 0;
  for (const char* budget : {"1.05", "1.6", "1.9"}) {
    const RunResult run =
        train(4, {"parallel.ep=2", fmt::format("moe.token_budget={}", budget), "moe.overflow=\"rerun\""}, 8);
    expect_same(roomy, run);
    mixed += run.reruns > 0 && run.reruns < 8;
  }
  EXPECT_GT(mixed, 0);
}

TEST_F(LayoutRuns, WithoutRerunTheRunStops) {
  try {
    train(4, {"parallel.ep=2", "moe.token_budget=1.05"});
    FAIL() << "every step fit";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("would fit this step"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace pleat::train
