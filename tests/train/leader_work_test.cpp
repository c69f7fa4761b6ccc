// Work of one rank that lasts longer than a call may: no other waits that long.
#include "train/leader_work.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "comm/local/local_world.h"
#include "support/refusal.h"
#include "support/small_models.h"

namespace pleat::train {
namespace {

void on_both_ranks(const std::function<void(runtime::Crew&)>& main) {
  const config::Config config =
      config::resolve(config::parse(::pleat::testing::kRunModel + "moe.num_experts = 4\n",
                                    {"parallel.ep=2", "train.num_microbatches=2"}, "leader.toml"));
  comm::Options options;
  options.timeout_seconds = 0.5;
  std::atomic<int> stalls = 0;
  options.on_stall = [&](const std::string&) { ++stalls; };
  comm::LocalWorld world(2, options);
  comm::run_ranks(world, [&](int rank) {
    const auto endpoint = world.endpoint(rank);
    runtime::Crew crew(config, *endpoint, 1);
    main(crew);
  });
  EXPECT_EQ(stalls, 0);
}

TEST(LeaderWork, MayLastLongerThanACall) {
  std::atomic<int> done = 0;
  on_both_ranks([&](runtime::Crew& crew) {
    work_on_leader(crew, "long", [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      ++done;
    });
    EXPECT_EQ(done, 1);
  });
}

TEST(LeaderWork, ItsErrorIsTheLeaders) {
  on_both_ranks([&](runtime::Crew& crew) {
    const auto fail = [&] { work_on_leader(crew, "failing", [] { base::fail("no such tokens"); }); };
    if (crew.leads())
      EXPECT_NE(::pleat::testing::refusal(fail).find("no such tokens"), std::string::npos);
    else
      fail();
  });
}

}  // namespace
}  // namespace pleat::train
