// Lanes run side by side, wait for what the program says they wait for, and end together when one fails.
#include "interpret/run/lane_threads.h"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <future>

#include "base/alloc_watch.h"
#include "base/error.h"
#include "interpret/interpret_support.h"

namespace pleat::interpret {
namespace {

using program::StageId;

constexpr program::StageRange kAll = {0, 1 << 30};

// Stages 0 (compute) and 1 (side) are free of each other; all later ones need both.
class LaneThreadsTest : public ::testing::Test {
 protected:
  void run(const std::function<void(StageId)>& stage, uint64_t seed = 0) {
    lanes_.run(kAll, seed, stage, [&](const std::string& why) { told_ = why; });
  }
  const program::Program program_ = parse(kSmall);
  LaneThreads lanes_{program_};
  std::string told_;
};

TEST_F(LaneThreadsTest, LanesRunSideBySide) {
  ASSERT_EQ(lanes_.num_lanes(), 2);
  std::barrier both(2);  // passed only if the two stages are inside at the same time
  run([&](StageId s) {
    if (s <= 1) both.arrive_and_wait();
  });
}

TEST_F(LaneThreadsTest, AStageWaitsForTheOtherLane) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mutex mutex;
    std::vector<StageId> order;
    run(
        [&](StageId s) {
          std::lock_guard lock(mutex);
          order.push_back(s);
        },
        seed);
    ASSERT_EQ(order.size(), program_.stages.size());
    for (size_t i = 2; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<StageId>(i));
  }
}

TEST_F(LaneThreadsTest, AFailureEndsAllLanesAndTheNextRunIsWhole) {
  for (const StageId bad : {0, 1, 3}) {
    std::atomic<int> ran = 0;
    told_.clear();
    try {
      run([&](StageId s) {
        ++ran;
        if (s == bad) base::fail("stage {} broke", s);
      });
      FAIL() << "nothing was thrown";
    } catch (const base::Error& e) {
      EXPECT_EQ(std::string(e.what()), fmt::format("stage {} broke", bad));
    }
    EXPECT_EQ(told_, fmt::format("stage {} broke", bad));
    EXPECT_LE(ran, bad + 2);
    ran = 0;
    run([&](StageId) { ++ran; });
    EXPECT_EQ(ran, static_cast<int>(program_.stages.size()));
  }
}

TEST_F(LaneThreadsTest, RunsAllocateNothingOnceTheThreadsAreThere) {
  const std::function<void(StageId)> nothing = [](StageId) {};
  const std::function<void(const std::string&)> failed = [](const std::string&) {};
  lanes_.run(kAll, 0, nothing, failed);
  base::start_allocation_watch();
  for (int i = 0; i < 100; ++i) lanes_.run(kAll, 0, nothing, failed);
  const base::AllocationCount seen = base::stop_allocation_watch();
  if (seen.available) {
    EXPECT_EQ(seen.large, 0);
  }
}

}  // namespace
}  // namespace pleat::interpret
