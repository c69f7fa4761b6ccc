// Ranks that store into each other's windows, of which one fails.
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/local/local_world.h"
#include "runtime/crew.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

// Ranks that pause between what they were told and their stores, as a slow machine would.
std::vector<int64_t> late_stores(const program::Program& program) {
  std::vector<int64_t> least_ns;
  for (const program::Stage& s : program.stages)
    least_ns.push_back(s.op == program::Op::dispatch_gather ? 50'000'000 : 0);
  return least_ns;
}

TEST(Windows, ARankThatFailsBeforeItsMeetingIsNamedByOthersThatStillStore) {
  const config::Config config = small_config(
      "", {"parallel.ep=4", "parallel.exchange=windows", "model.num_layers=1", "moe.num_experts=8",
           "train.num_microbatches=4", "train.seq_len=64", "device.threads=1"});
  for (int bad = 0; bad < 4; ++bad) {
    comm::Options options;
    options.timeout_seconds = 60;
    options.inject = [&](int rank, std::string_view, int, comm::Call& call) {
      if (rank == bad && call.stage.find("dispatch_meet") != std::string_view::npos)
        base::fail_with(base::ExitCode::Numerical, "planted before a meeting");
      return true;
    };
    comm::LocalWorld world(4, options);
    try {
      comm::run_ranks(world, [&](int rank) {
        const auto endpoint = world.endpoint(rank);
        runtime::Crew crew(config, *endpoint, 1);
        runtime::Programs programs(config, train_only(), &crew);
        programs.initialize();
        config::Config mine = config;
        mine.train.num_microbatches = 1;
        write_random_batch(programs.train(), mine, 1);
        const std::vector<int64_t> late = late_stores(programs.train().program());
        interpret::RunOptions run;
        if (rank != bad) run.least_ns = late;
        programs.train().run(run);
      });
      ADD_FAILURE() << "no error";
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ExitCode::Numerical);
      EXPECT_EQ(std::string(e.what()).find("rank " + std::to_string(bad) + ": "), 0u) << e.what();
      EXPECT_NE(std::string(e.what()).find("planted before a meeting"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace pleat::train::testing
