// Ranks on several machines: here network namespaces, each with a host name of its own, that share a folder and one
// cable. Nothing of a rank is seen from another machine but what it tells.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "resume/resume_support.h"
#include "support/process.h"

namespace pleat::train {
namespace {

using pleat::testing::Ended;
using pleat::testing::PleatProcess;
using pleat::testing::run_shell;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Two machines with two ranks each.
class Hosts : public ::testing::Test {
 protected:
  static constexpr int kRanks = 4, kSteps = 200;
  static constexpr double kTimeout = 2;

  void SetUp() override {
    const std::string id = std::to_string(getpid());
    for (size_t h = 0; h < 2; ++h) names_[h] = fmt::format("pleat-{}-{}", id, h);
    const Ended made = shell(
        "set -e; PATH=$PATH:/usr/sbin:/sbin\n"
        "for h in {0} {1}; do ip netns add $h; ip -n $h link set lo up; done\n"
        "ip link add cable netns {0} type veth peer name cable netns {1}\n"
        "ip -n {0} addr add 10.77.0.1/24 dev cable; ip -n {1} addr add 10.77.0.2/24 dev cable\n"
        "ip -n {0} link set cable up; ip -n {1} link set cable up\n"
        "unshare --uts true");
    if (made.code != 0) GTEST_SKIP() << "no machines can be made here: " << made.err;
    testing::write_dataset(folder_.at("data"), 6000, 7);
  }

  void TearDown() override {
    shell("PATH=$PATH:/usr/sbin:/sbin; for h in {0} {1}; do ip netns del $h; done");
  }

  Ended shell(const std::string& line) {
    return run_shell(folder_.path(), fmt::format(fmt::runtime(line), names_[0], names_[1]));
  }

  std::vector<std::string> words(const std::string& run) {
    const std::string file = folder_.at(run + ".toml");
    pleat::testing::write_file(file, testing::run_toml(folder_.at("data"), folder_.at(run), kSteps));
    return {"train",
            file,
            "--quiet",
            "--set",
            "parallel.ep=4",
            "--set",
            "checkpoint.every=10",
            "--set",
            "train.num_microbatches=4",
            "--set",
            "checkpoint.keep=2",
            "--set",
            fmt::format("comm.timeout={}", kTimeout)};
  }

  // The processes of ranks 0 and 1 on the first machine, 2 and 3 on the second.
  std::vector<std::unique_ptr<PleatProcess>> start(const std::string& run) {
    std::vector<std::unique_ptr<PleatProcess>> ranks;
    const std::vector<std::string> asked = words(run);
    for (int r = 0; r < kRanks; ++r) {
      const std::string& host = names_[static_cast<size_t>(r / 2)];
      const std::string folder = folder_.at(fmt::format("said-{}", r));
      std::filesystem::create_directories(folder);
      std::vector<std::string> command = {
          "-c", fmt::format("PATH=$PATH:/usr/sbin:/sbin; export RANK={} WORLD_SIZE={} LOCAL_RANK={} "
                            "LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500 PLEAT_JOB_TOKEN={}\n"
                            "exec ip netns exec {} unshare --uts /bin/sh -c "
                            "'echo {} > /proc/sys/kernel/hostname; exec \"$@\"' \"$@\"",
                            r, kRanks, r % 2, run, host, host)};
      command.insert(command.end(), {"sh", "sh", PLEAT_BINARY});
      command.insert(command.end(), asked.begin(), asked.end());
      ranks.push_back(std::make_unique<PleatProcess>(folder, command, "/bin/sh"));
    }
    return ranks;
  }

  void wait_for_step(PleatProcess& process, const std::string& run, int step) {
    for (;;) {
      const std::string text = pleat::testing::read_by_now(folder_.at(run) + "/metrics.jsonl");
      if (std::count(text.begin(), text.end(), '\n') >= step || !process.running()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  std::string digest(const std::string& run) {
    return nlohmann::json::parse(
        pleat::testing::read_file(folder_.at(run) + "/summary.json"))["state_sha256"];
  }

  const testing::TemporaryFolder folder_;
  std::array<std::string, 2> names_;
};

void expect_said(const std::string& text, const std::string& pattern) {
  EXPECT_TRUE(std::regex_search(text, std::regex(pattern))) << pattern << "\nis not in:\n" << text;
}

TEST_F(Hosts, ComputeWhatOneComputes) {
  for (auto& rank : start("two")) {
    const Ended ended = rank->wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
  std::vector<std::string> one = {"launch", "--ranks", std::to_string(kRanks)};
  for (const std::string& word : words("one")) one.push_back(word);
  ASSERT_EQ(PleatProcess(folder_.path(), one).wait().code, 0);
  EXPECT_EQ(digest("two"), digest("one"));
}

// A stopped process tells nothing: the other machine knows where it was, and must not take that for where it is.
TEST_F(Hosts, ARankThatIsStoppedIsNamedOnBoth) {
  auto ranks = start("stopped");
  wait_for_step(*ranks[0], "stopped", 15);
  const auto begin = Clock::now();
  ranks[3]->send(SIGSTOP);
  std::array<std::string, 3> said;
  for (size_t r = 0; r < 3; ++r) {
    const Ended ended = ranks[r]->wait();
    EXPECT_EQ(ended.code, 75) << ended.err;
    said[r] = ended.err;
    EXPECT_EQ(ended.err.find("rank 3 has waited"), std::string::npos) << ended.err;
    expect_said(ended.err, "rank [012] has waited [23]\\.[0-9] s, the time-out is 2 s");
  }
  EXPECT_LT(seconds_since(begin), kTimeout + 2);
  expect_said(said[0] + said[1], "\n +3  [A-Za-z ]+  no sign of life for [23]\\.[0-9] s; ");
  expect_said(said[2], "\n +3  [A-Za-z ]+  process [0-9]+ is stopped; ");
}

TEST_F(Hosts, ARankThatIsKilledEndsTheOthersAtOnce) {
  auto ranks = start("killed");
  wait_for_step(*ranks[0], "killed", 15);
  const auto begin = Clock::now();
  ranks[3]->send(SIGKILL);
  std::string said;
  for (size_t r = 0; r < 3; ++r) {
    const Ended ended = ranks[r]->wait();
    EXPECT_EQ(ended.code, 75) << ended.err;
    said += ended.err;
  }
  EXPECT_LT(seconds_since(begin), kTimeout);
  expect_said(said, "rank 3 is gone \\(its connection was closed\\)");
  expect_said(said, "rank 3 is gone \\(process [0-9]+ has ended\\)");
}

// The cable is pulled: each machine names the ranks of the other, and the run goes on when it is back.
TEST_F(Hosts, ACutNetworkEndsAllAndTheRunGoesOnLater) {
  auto ranks = start("cut");
  wait_for_step(*ranks[0], "cut", 15);
  ASSERT_EQ(shell("/usr/sbin/ip -n {0} link set cable down").code, 0);
  const auto begin = Clock::now();
  std::array<std::string, 2> said;
  for (size_t r = 0; r < kRanks; ++r) {
    const Ended ended = ranks[r]->wait();
    EXPECT_EQ(ended.code, 75) << ended.err;
    said[r / 2] += ended.err;
  }
  EXPECT_LT(seconds_since(begin), kTimeout + 2);
  for (size_t host = 0; host < 2; ++host) {
    const int far = host == 0 ? 2 : 0;
    expect_said(said[host], "stall: ");
    EXPECT_EQ(said[host].find(fmt::format("rank {} has waited", far)), std::string::npos) << said[host];
    EXPECT_EQ(said[host].find(fmt::format("rank {} has waited", far + 1)), std::string::npos) << said[host];
    for (const int rank : {far, far + 1})
      expect_said(said[host], fmt::format("\n +{}  [A-Z a-z]+  no sign of life for [1-4]\\.[0-9] s; ", rank));
  }
  ASSERT_EQ(shell("/usr/sbin/ip -n {0} link set cable up").code, 0);
  for (auto& rank : start("cut")) {
    const Ended ended = rank->wait();
    EXPECT_EQ(ended.code, 0) << ended.err;
  }
  for (auto& rank : start("straight")) {
    const Ended ended = rank->wait();
    ASSERT_EQ(ended.code, 0) << ended.err;
  }
  EXPECT_EQ(digest("cut"), digest("straight"));
}

}  // namespace
}  // namespace pleat::train
