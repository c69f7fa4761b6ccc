// Groups over NCCL, split from one communicator, with ranks as processes on one GPU: who is in them, calls that are
// compared, and memory that is measured. Skipped where the loaded library cannot do it.
//
// NcclRank.DISABLED_* is what one rank does; only the tests above them start it.
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/comm_support.h"
#include "comm/exercise.h"
#include "comm/inject.h"
#include "cuda/cuda_support.h"
#include "cuda/nccl_world_support.h"
#include "support/files.h"

namespace pleat {
namespace {

using testing::NcclEnded;
using testing::NcclRank;
using testing::run_nccl_ranks;
using testing::StagedNccl;

#define PLEAT_NEEDS_NCCL_RANKS() \
  PLEAT_NEEDS_GPU();             \
  if (const std::string why = testing::no_nccl_ranks(); !why.empty()) GTEST_SKIP() << why

void expect_all_well(const NcclEnded& ended) {
  for (size_t r = 0; r < ended.codes.size(); ++r)
    EXPECT_EQ(ended.codes[r], 0) << "rank " << r << ":\n" << ended.said[r];
}

TEST(CudaNcclGroups, AreSplitFromOneWorld) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  expect_all_well(run_nccl_ranks(folder.path(), 4, "Split"));
}

// All four, pairs side by side, two of four while the others stand aside, and an order that is not the world's.
TEST(NcclRank, DISABLED_Split) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclGroups";
  NcclRank::run(60, [](comm::Endpoint& world, const NcclRank&) {
    const int rank = world.rank();
    const auto all_cases = [](StagedNccl& group) {
      std::string digest;
      EXPECT_EQ(testing::run_cases(group.group(), digest, testing::Sums::Native), "") << group.group().name();
    };
    StagedNccl all(world, "all", testing::all_of(4));
    all_cases(all);
    StagedNccl pair(world, rank < 2 ? "pair:0" : "pair:2",
                    rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
    all_cases(pair);
    std::unique_ptr<StagedNccl> two;
    if (rank % 2 == 0)
      two = std::make_unique<StagedNccl>(world, "two", std::vector<int>{0, 2});
    else
      StagedNccl::stand_aside(world);
    if (two) all_cases(*two);
    StagedNccl turned(world, "turned", std::vector<int>{2, 0, 3, 1});
    EXPECT_EQ(turned.enqueued().rank(), std::vector<int>({1, 3, 0, 2})[static_cast<size_t>(rank)]);
    all_cases(turned);
    // One that was ended takes no other with it.
    pair.wait_for_all();
    pair.enqueued().abort("not needed any more");
    float one = 1;
    all.group().all_reduce("behind", std::span(&one, 1), comm::Reduce::Sum);
    EXPECT_EQ(one, 4);
    all.wait_for_all();
  });
}

TEST(CudaNcclGroups, AreOpenedTogetherWhateverEachRankAsksFor) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  expect_all_well(run_nccl_ranks(folder.path(), 4, "Together"));
}

// As stages of a pipeline do: several at once, in another order on every rank, one of them of two ranks alone.
TEST(NcclRank, DISABLED_Together) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclGroups";
  NcclRank::run(60, [](comm::Endpoint& world, const NcclRank&) {
    const int rank = world.rank();
    const auto memory = comm::exercise_on_gpu();
    const int stage = rank / 2 * 2;
    std::vector<comm::WantedGroup> wanted = {
        {fmt::format("tp:{}", stage), {stage, stage + 1}, memory->stream()},
        {fmt::format("pp:{}", rank % 2), {rank % 2, rank % 2 + 2}, memory->stream()},
        {"world", {0, 1, 2, 3}, memory->stream()}};
    if (rank >= 2) wanted.push_back({"last", {2, 3}, memory->stream()});
    if (rank % 2 == 1) std::reverse(wanted.begin(), wanted.end());
    const auto groups = world.groups(wanted, comm::Buffers::Device);
    ASSERT_EQ(groups.size(), wanted.size());
    const auto words = world.group("words", testing::all_of(4), comm::Buffers::Host, nullptr);
    // One order on all ranks; every group has its own kind of call.
    for (const char* name : {"tp", "pp", "world", "last"})
      for (size_t i = 0; i < groups.size(); ++i) {
        if (!groups[i]->name().starts_with(name)) continue;
        EXPECT_EQ(groups[i]->name(), wanted[i].name);
        const auto own =
            world.group(wanted[i].name + " on the host", wanted[i].ranks, comm::Buffers::Host, nullptr);
        for (const comm::Exercised& e : comm::exercise(*groups[i], *own, *memory, {1 << 16, 3})) {
          EXPECT_EQ(e.fault, "") << wanted[i].name << " " << e.operation;
          EXPECT_GT(e.latency_seconds, 0) << e.operation;
        }
        EXPECT_GE(groups[i]->device_bytes(), 0);
      }
    EXPECT_GE(world.device_bytes(), 0);
    words->barrier("end");
  });
}

// A rank that asks for other groups than its members expect: all are told, nobody waits.
TEST(CudaNcclGroups, AMemberThatDoesNotAskIsNamed) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  const NcclEnded ended = run_nccl_ranks(folder.path(), 2, "Unasked", "", 60);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(ended.codes[r], 65) << ended.said[r];
    EXPECT_NE(ended.said[r].find("group 'all' of 2 ranks is opened by rank 0 only"), std::string::npos)
        << ended.said[r];
  }
}

TEST(NcclRank, DISABLED_Unasked) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclGroups";
  NcclRank::run(20, [](comm::Endpoint& world, const NcclRank&) {
    if (world.rank() == 1) return StagedNccl::stand_aside(world);
    StagedNccl all(world, "all", testing::all_of(world.size()));
  });
}

// ---- Calls that are compared

TEST(CudaNcclGroups, CheckModeLetsEveryOperationPass) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  expect_all_well(run_nccl_ranks(folder.path(), 3, "Checked", "none"));
}

TEST(CudaNcclGroups, CheckModeFindsAPlantedDifference) {
  PLEAT_NEEDS_NCCL_RANKS();
  const testing::TemporaryFolder folder;
  struct {
    const char *fault, *what;
  } const cases[] = {{"size", "do not agree on the shape"}, {"skip", "do not agree on the operation"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.fault);
    const NcclEnded ended = run_nccl_ranks(folder.path(), 3, "Checked", c.fault, 60);
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(ended.codes[r], 65) << ended.said[r];
      EXPECT_NE(ended.said[r].find("group 'all' (ranks 0 1 2), call 1: ranks 0 and 1"), std::string::npos)
          << ended.said[r];
      EXPECT_NE(ended.said[r].find(c.what), std::string::npos) << ended.said[r];
    }
  }
}

TEST(NcclRank, DISABLED_Checked) {
  if (!NcclRank::is_one()) GTEST_SKIP() << "is started by CudaNcclGroups";
  comm::Options options;
  options.timeout_seconds = 20;
  options.check = true;
  const std::string fault = NcclRank::given();
  if (fault != "none") options.inject = comm::inject(comm::parse_fault(fault + ":1:planted"));
  NcclRank::run(options, [&](comm::Endpoint& world, const NcclRank&) {
    StagedNccl all(world, "all", testing::all_of(world.size()));
    try {
      if (fault == "none") {
        std::string digest;
        EXPECT_EQ(testing::run_cases(all.group(), digest, testing::Sums::Native), "");
      }
      std::vector<float> v(64, 1.0F);
      all.group().barrier("first");
      all.group().all_reduce("planted", std::span(v), comm::Reduce::Sum);
      all.group().barrier("last");
    } catch (const std::exception& e) {
      all.enqueued().abort(e.what());  // as whoever runs programs does
      throw;
    }
    all.wait_for_all();
  });
}

}  // namespace
}  // namespace pleat
