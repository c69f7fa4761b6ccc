// Process ranks, over MPI and over TCP: the cases of the thread ranks with the same bits, and what is said when a process
// goes missing.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <numeric>

#include "comm/comm_support.h"
#include "comm/local/local_world.h"
#include "comm/mpi/mpi_world.h"
#include "comm/process/run_rank.h"

namespace pleat {
namespace {

struct Ended {
  int code = -1;
  std::string said;  // output and errors together
  double seconds = 0;
};

// A rank that waits for ever never ends; to start and end MPI's processes alone takes seconds on a busy machine.
constexpr double kSoon = 30;

class Processes : public ::testing::TestWithParam<comm::Carrier> {
 protected:
  void SetUp() override {
    if (GetParam() == comm::Carrier::Mpi &&
        (!comm::mpi_is_built_in() || std::string(PLEAT_MPI_RANKS).empty()))
      GTEST_SKIP() << "no MPI in this build";
  }

  static Ended start(int size, const std::string& name) {
    const std::string ranks = GetParam() == comm::Carrier::Mpi
                                  ? fmt::format(fmt::runtime(PLEAT_MPI_RANKS), size)
                                  : fmt::format("{} launch {}", PLEAT_COMM_RANKS, size);
    const std::string command = ranks + " " + name + " 2>&1 < /dev/null";
    const auto begin = std::chrono::steady_clock::now();
    FILE* pipe = popen(command.c_str(), "r");
    Ended ended;
    char buffer[4096];
    for (size_t n = 0; pipe != nullptr && (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;)
      ended.said.append(buffer, n);
    const int status = pclose(pipe);
    ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return ended;
  }

  static void expect_words(const Ended& ended, std::initializer_list<std::string> words) {
    for (const std::string& word : words)
      EXPECT_NE(ended.said.find(word), std::string::npos) << "'" << word << "' in: " << ended.said;
  }
};

std::string local_digests(int size) {
  comm::LocalWorld world(size);
  std::vector<std::string> digests(static_cast<size_t>(size));
  comm::run_ranks(world, [&](int rank) {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    testing::run_cases(*world.group("all", ranks, rank), digests[static_cast<size_t>(rank)]);
  });
  std::string all;
  for (const std::string& digest : digests) all += digest;
  return all;
}

TEST_P(Processes, SameBitsAsThreads) {
  for (const int size : {1, 2, 3, 4}) {
    const Ended ended = start(size, size == 3 ? "checked" : "cases");
    EXPECT_EQ(ended.code, 0) << ended.said;
    expect_words(ended, {local_digests(size)});
  }
}

TEST_P(Processes, NativeReductions) {
  if (GetParam() != comm::Carrier::Mpi) GTEST_SKIP() << "of MPI";
  expect_words(start(3, "native"), {"near\n"});
}

TEST_P(Processes, TwoThreadsOfEachRank) { expect_words(start(2, "threads"), {"both\n"}); }

TEST_P(Processes, CheckModeNamesTheFirstDifference) {
  const Ended size = start(2, "mismatch");
  EXPECT_EQ(size.code, 65) << size.said;
  expect_words(size, {"ranks 0 and 1 do not agree on the shape", "all_reduce sum f32 16 bytes",
                      "all_reduce sum f32 20 bytes"});
  const Ended order = start(2, "order");
  EXPECT_EQ(order.code, 65) << order.said;
  expect_words(order, {"ranks 0 and 1 do not agree on the stage", "'first'", "'second'"});
}

TEST_P(Processes, OtherSizeIsFoundWithoutCheckModeToo) {
  const Ended ended = start(2, "unchecked_mismatch");
  EXPECT_NE(ended.code, 0);
  expect_words(ended, {"group 'dp', all_reduce #0 of stage 'norm'", "bytes awaited"});
}

TEST_P(Processes, SkippedCollective) {
  const Ended ended = start(3, "skip");
  EXPECT_EQ(ended.code, 75) << ended.said;
  expect_words(ended, {"stall: group 'dp' all_reduce #1 stage 'second'", "0  yes", "1  yes",
                       "2  NOT ARRIVED  in no call; last was group 'dp' all_reduce #0 stage 'first'"});
  EXPECT_LT(ended.seconds, kSoon);
}

TEST_P(Processes, NoCallAtAll) {
  const Ended ended = start(2, "never");
  EXPECT_EQ(ended.code, 75) << ended.said;
  expect_words(ended, {"stall: group 'dp' barrier #0 stage 'first'", "0  yes", "1  NOT ARRIVED"});
  const Ended unopened = start(2, "unopened");
  EXPECT_EQ(unopened.code, 75) << unopened.said;
  // Over TCP a group is open at once; rank 0 then waits at the end of its run.
  expect_words(unopened, {GetParam() == comm::Carrier::Mpi ? "stall: group 'dp (opening)'"
                                                           : "stall: group 'world (closing)'",
                          "0  yes", "1  NOT ARRIVED  in no call; none made yet"});
}

TEST_P(Processes, StoppedProcess) {
  const Ended ended = start(3, "stop");
  EXPECT_EQ(ended.code, 75) << ended.said;
  expect_words(ended, {"stall: group 'dp' all_reduce #1 stage 'second'", "2  NOT ARRIVED"});
  EXPECT_LT(ended.seconds, kSoon);
}

TEST_P(Processes, KilledProcess) {
  const Ended ended = start(3, "kill");
  EXPECT_NE(ended.code, 0);
  expect_words(ended, {"rank 2 is gone", "in group 'dp' all_reduce #1 stage 'second'",
                       "last was group 'dp' all_reduce #0 stage 'first'"});
  EXPECT_LT(ended.seconds, kSoon);
}

TEST_P(Processes, ErrorOfOneRankEndsAll) {
  const Ended ended = start(3, "throw");
  EXPECT_NE(ended.code, 0);
  expect_words(ended, {"error: loss is not finite"});
  EXPECT_LT(ended.seconds, kSoon);
}

// Whoever is left says itself what it knows, and the launcher says who was first.
TEST_P(Processes, EverySurvivorNamesRankStageAndGroup) {
  if (GetParam() != comm::Carrier::Tcp) GTEST_SKIP() << "mpirun ends the others";
  const Ended ended = start(4, "kill");
  EXPECT_EQ(ended.code, 75) << ended.said;
  size_t named = 0;
  for (size_t at = 0; (at = ended.said.find("pleat: rank 3 is gone", at)) != std::string::npos; ++at) ++named;
  EXPECT_EQ(named, 3U) << ended.said;
  size_t waiting = 0;
  for (size_t at = 0; (at = ended.said.find("was waiting in group 'dp' all_reduce #1 stage 'second'", at)) !=
                      std::string::npos;
       ++at)
    ++waiting;
  EXPECT_EQ(waiting, 3U) << ended.said;
  expect_words(ended, {"pleat launch: rank 3 was killed by signal 9"});
}

INSTANTIATE_TEST_SUITE_P(Over, Processes, ::testing::Values(comm::Carrier::Mpi, comm::Carrier::Tcp),
                         [](const auto& info) { return std::string(comm::name_of(info.param)); });

}  // namespace
}  // namespace pleat
