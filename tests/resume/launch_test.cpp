// `pleat launch`: ranks that are killed are started again and end with the bits of a run that was not, and a signal
// reaches all of them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "comm/tcp/socket.h"
#include "resume/resume_support.h"
#include "support/process.h"

namespace pleat::train {
namespace {

using pleat::testing::Ended;
using pleat::testing::PleatProcess;

class Launch : public ::testing::Test {
 protected:
  static constexpr int kSteps = 60;

  void SetUp() override { testing::write_dataset(folder_.at("data"), 6000, 7); }

  std::vector<std::string> words(const std::string& run, const std::vector<std::string>& launch) {
    std::vector<std::string> all = {"launch", "--ranks", "2", "--grace", "10"};
    all.insert(all.end(), launch.begin(), launch.end());
    const std::string file = folder_.at(run + ".toml");
    pleat::testing::write_file(file, testing::run_toml(folder_.at("data"), folder_.at(run), kSteps));
    for (const char* word : {"train", "--quiet", "--set", "parallel.ep=2", "--set", "checkpoint.every=10",
                             "--set", "train.num_microbatches=2", "--set", "checkpoint.keep=2"})
      all.emplace_back(word);
    all.insert(all.begin() + 5 + static_cast<std::ptrdiff_t>(launch.size()) + 1, file);
    return all;
  }

  std::string digest(const std::string& run) {
    return nlohmann::json::parse(
        pleat::testing::read_file(folder_.at(run) + "/summary.json"))["state_sha256"];
  }

  // Waits until the run has come that far.
  void wait_for_step(PleatProcess& process, const std::string& run, int step) {
    const std::string log = folder_.at(run) + "/metrics.jsonl";
    for (;;) {
      const std::string text = pleat::testing::read_by_now(log);
      if (std::count(text.begin(), text.end(), '\n') >= step || !process.running()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  const testing::TemporaryFolder folder_;
};

std::vector<int> children_of(int process) {
  std::stringstream text(pleat::testing::read_file(fmt::format("/proc/{0}/task/{0}/children", process)));
  std::vector<int> found;
  for (int child = 0; text >> child;) found.push_back(child);
  return found;
}

TEST_F(Launch, AKilledRankIsStartedAgainWithTheOthers) {
  const Ended whole = PleatProcess(folder_.path(), words("whole", {})).wait();
  ASSERT_EQ(whole.code, 0) << whole.err;
  PleatProcess process(folder_.path(), words("killed", {"--restarts", "1"}));
  wait_for_step(process, "killed", 15);
  const std::vector<int> ranks = children_of(process.id());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGKILL);
  const Ended ended = process.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  for (const char* said : {"rank 1 was killed by signal 9", "starting all ranks again (1 of 1)"})
    EXPECT_NE(ended.err.find(said), std::string::npos) << ended.err;
  EXPECT_EQ(digest("killed"), digest("whole"));
}

TEST_F(Launch, ASignalStopsAllAndNothingIsStartedAgain) {
  PleatProcess process(folder_.path(), words("stopped", {"--restarts", "3"}));
  wait_for_step(process, "stopped", 15);
  process.send(SIGTERM);
  const Ended stopped = process.wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_EQ(stopped.err.find("again"), std::string::npos) << stopped.err;
  const Ended whole = PleatProcess(folder_.path(), words("stopped", {})).wait();
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(PleatProcess(folder_.path(), words("straight", {})).wait().code, 0);
  EXPECT_EQ(digest("stopped"), digest("straight"));
}

TEST_F(Launch, ARankThatIsStoppedEndsWithTheTimeOut) {
  std::vector<std::string> with = words("held", {});
  with.insert(with.end(), {"--set", "comm.timeout=2"});
  PleatProcess process(folder_.path(), with);
  wait_for_step(process, "held", 5);
  const std::vector<int> ranks = children_of(process.id());
  ASSERT_EQ(ranks.size(), 2u);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(ranks[1], SIGSTOP);
  const Ended ended = process.wait();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(ended.code, 75) << ended.err;
  EXPECT_LT(seconds, 2 + 4) << ended.err;  // less than the grace: it is killed, since nobody wakes it
  for (const char* said : {"rank 0 has waited", "is stopped", "rank 1 was stopped: killed"})
    EXPECT_NE(ended.err.find(said), std::string::npos) << said << " in: " << ended.err;
}

// One rank's disk takes no more: all say which rank it was, nothing is committed, and the run goes on later.
TEST_F(Launch, ARankThatCannotWriteItsShareEndsTheSaveOnAll) {
  PleatProcess process(folder_.path(), words("full", {}));
  wait_for_step(process, "full", 15);
  const std::vector<int> ranks = children_of(process.id());
  ASSERT_EQ(ranks.size(), 2u);
  const rlimit small{4096, 4096};
  ASSERT_EQ(::prlimit(ranks[1], RLIMIT_FSIZE, &small, nullptr), 0);
  const Ended ended = process.wait();
  EXPECT_EQ(ended.code, 74) << ended.err;
  EXPECT_NE(ended.err.find("rank 1: cannot "), std::string::npos) << ended.err;
  base::PosixVfs vfs;
  const checkpoint::Found found = checkpoint::find_newest(vfs, folder_.at("full") + "/checkpoints");
  ASSERT_TRUE(found.newest);
  EXPECT_TRUE(found.skipped.empty()) << found.skipped[0].name << ": " << found.skipped[0].reason;
  EXPECT_EQ(PleatProcess(folder_.path(), words("full", {})).wait().code, 0);
  EXPECT_EQ(PleatProcess(folder_.path(), words("empty", {})).wait().code, 0);
  EXPECT_EQ(digest("full"), digest("empty"));
}

// Nobody else has come: there is no step to finish, and nothing to save.
TEST_F(Launch, ASignalEndsTheWaitForOtherRanks) {
  std::vector<std::string> all = words("door", {});
  all.erase(all.begin(), all.begin() + 5);
  all.insert(all.begin(), {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1",
                           PLEAT_BINARY});
  PleatProcess process(folder_.path(), all, "/usr/bin/env");
  while (process.running() && !process.catches(SIGTERM))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto begin = std::chrono::steady_clock::now();
  process.send(SIGTERM);
  const Ended ended = process.wait();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_EQ(ended.code, 75) << ended.err;
  EXPECT_LT(seconds, 1.5) << ended.err;
  EXPECT_NE(ended.err.find("rank 1 of 2 was asked to stop while it waited at 127.0.0.1:1"), std::string::npos)
      << ended.err;
}

// `env` and its words stand before the command.
TEST_F(Launch, AHangUpThatIsIgnoredStopsNobody) {
  std::vector<std::string> all = words("nohup", {"--restarts", "1"});
  all.insert(all.begin(), {"--ignore-signal=HUP", PLEAT_BINARY});
  PleatProcess process(folder_.path(), all, "/usr/bin/env");
  wait_for_step(process, "nohup", 5);
  process.send(SIGHUP);
  wait_for_step(process, "nohup", 15);
  const std::vector<int> ranks = children_of(process.id());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGKILL);
  const Ended ended = process.wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_NE(ended.err.find("starting all ranks again"), std::string::npos) << ended.err;
}

TEST_F(Launch, EndsWhereTheSignalOfEndedChildrenIsIgnored) {
  std::vector<std::string> all = words("children", {});
  all.insert(all.begin(), {"--ignore-signal=CHLD", PLEAT_BINARY});
  const Ended ended = PleatProcess(folder_.path(), all, "/usr/bin/env").wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
}

// As in a shell that `srun --pty bash` has started.
TEST_F(Launch, RanksAreItsOwnAndNotThoseOfTheShellsLauncher) {
  std::vector<std::string> all = words("slurm", {});
  all.insert(all.begin(),
             {"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_LOCALID=0", "SLURM_STEP_ID=3", PLEAT_BINARY});
  const Ended ended = PleatProcess(folder_.path(), all, "/usr/bin/env").wait();
  EXPECT_EQ(ended.code, 0) << ended.err;
}

// Two ranks that some launcher has started by itself, each with words of its own after those of all.
class OwnRanks : public Launch {
 protected:
  std::vector<Ended> start(const std::string& run, const std::vector<std::vector<std::string>>& own,
                           const std::vector<std::vector<std::string>>& before = {{}, {}}) {
    const std::string port = std::to_string(comm::tcp::port_of(comm::tcp::listen_at(0)));
    std::vector<std::string> of_all = words(run, {});  // writes the file they all read
    of_all.erase(of_all.begin(), of_all.begin() + 5);
    std::vector<std::unique_ptr<PleatProcess>> ranks;
    for (size_t r = 0; r < 2; ++r) {
      std::vector<std::string> all = of_all;
      all.insert(all.end(), own[r].begin(), own[r].end());
      const std::string rank = std::to_string(r);
      all.insert(all.begin(), {"RANK=" + rank, "WORLD_SIZE=2", "LOCAL_RANK=" + rank, "LOCAL_WORLD_SIZE=2",
                               "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port, PLEAT_BINARY});
      all.insert(all.begin(), before[r].begin(), before[r].end());
      const std::string folder = folder_.at("rank_" + rank);
      std::filesystem::create_directories(folder);
      ranks.push_back(std::make_unique<PleatProcess>(folder, all, "/usr/bin/env"));
    }
    return {ranks[0]->wait(), ranks[1]->wait()};
  }
};

TEST_F(OwnRanks, ThatDoNotAllCheckTheirCallsAreNamed) {
  for (const Ended& ended : start("check", {{}, {"--set", "comm.check=true"}})) {
    EXPECT_EQ(ended.code, 65) << ended.err;
    EXPECT_NE(ended.err.find("rank 1 has comm.check = true, rank 0 has comm.check = false"),
              std::string::npos)
        << ended.err;
  }
}

TEST_F(OwnRanks, ThatDoNotAllAllowChangesAreNamed) {
  for (const Ended& ended : start("change", {{"--allow-change"}, {}})) {
    EXPECT_EQ(ended.code, 65) << ended.err;
    EXPECT_NE(ended.err.find("rank 1 has --allow-change = no, rank 0 has --allow-change = yes"),
              std::string::npos)
        << ended.err;
  }
}

// The same name in another place, as where a disk is not mounted on one host.
TEST_F(OwnRanks, OneThatDoesNotSeeTheCheckpointIsNamedAndNoneIsPassedOver) {
  const std::vector<std::string> here = {"--set", "log.run_dir=apart", "--set", "train.steps=20"};
  const std::vector<std::string> first = {"-C", folder_.path()};
  for (const Ended& ended : start("apart", {here, here}, {first, first}))
    EXPECT_EQ(ended.code, 0) << ended.err;
  const std::vector<std::string> more = {"--set", "log.run_dir=apart", "--set", "train.steps=30"};
  std::filesystem::create_directories(folder_.at("elsewhere/apart"));
  const std::vector<Ended> ended = start("apart", {more, more}, {first, {"-C", folder_.at("elsewhere")}});
  EXPECT_EQ(ended[0].code, 74) << ended[0].err;
  EXPECT_NE(ended[0].err.find("rank 1: does not see 'apart/"), std::string::npos) << ended[0].err;
  EXPECT_EQ(ended[0].err.find("passed over"), std::string::npos) << ended[0].err;
}

// What one rank is asked all do: nobody is left waiting for it.
TEST_F(Launch, ASignalToOneRankStopsAllAfterTheStep) {
  PleatProcess process(folder_.path(), words("one", {}));
  wait_for_step(process, "one", 15);
  const std::vector<int> ranks = children_of(process.id());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGTERM);
  const Ended stopped = process.wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_EQ(stopped.err.find("stall"), std::string::npos) << stopped.err;
  EXPECT_EQ(PleatProcess(folder_.path(), words("one", {})).wait().code, 0);
  EXPECT_EQ(PleatProcess(folder_.path(), words("through", {})).wait().code, 0);
  EXPECT_EQ(digest("one"), digest("through"));
}

// It waits in a call for a rank that does not come, and cannot stop between steps.
TEST_F(Launch, ASignalToARankThatIsStuckEndsWithTheTimeOut) {
  std::vector<std::string> with = words("stuck", {});
  with.insert(with.end(), {"--set", "comm.timeout=2"});
  PleatProcess process(folder_.path(), with);
  wait_for_step(process, "stuck", 5);
  const std::vector<int> ranks = children_of(process.id());
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks[1], SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ::kill(ranks[0], SIGTERM);
  const Ended ended = process.wait();
  EXPECT_EQ(ended.code, 75) << ended.err;
  for (const char* said : {"rank 0 has waited", "is stopped", "rank 1 was stopped: killed"})
    EXPECT_NE(ended.err.find(said), std::string::npos) << said << " in: " << ended.err;
}

TEST_F(Launch, WindowsBetweenProcessesAreRefusedBeforeDataIsPrepared) {
  pleat::testing::write_file(folder_.at("notes.txt"), testing::made_up_text(6000, 3));
  std::vector<std::string> with = words("windows", {});
  const std::string file = folder_.at("text.toml");
  pleat::testing::write_file(file, testing::run_toml(folder_.at("notes.txt"), folder_.at("windows"), kSteps) +
                                       "data.separator = \"\\n\\n\"\ndata.valid_split = 0.2\n");
  with[6] = file;
  with.insert(with.end(), {"--set", "parallel.exchange=windows"});
  const Ended ended = PleatProcess(folder_.path(), with).wait();
  EXPECT_EQ(ended.code, 65) << ended.err;
  EXPECT_NE(ended.err.find("parallel.exchange = \"windows\" cannot be: ranks are processes"),
            std::string::npos)
      << ended.err;
  EXPECT_FALSE(std::filesystem::exists(folder_.at("windows"))) << "data was prepared";
}

// Found by every rank before they meet, and found by all of them together.
TEST_F(Launch, AnErrorOfAllRanksIsSaidOnce) {
  const auto count = [](const std::string& text, const std::string& words) {
    int found = 0;
    for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++found;
    return found;
  };
  const auto expect_once = [&](const std::vector<std::string>& arguments, int ranks,
                               const std::string& error) {
    const Ended ended = PleatProcess(folder_.path(), arguments).wait();
    EXPECT_EQ(ended.code, 65) << ended.err;
    EXPECT_EQ(count(ended.err, error), 1) << ended.err;
    EXPECT_EQ(count(ended.err, "ends with the same error as rank"), ranks - 1) << ended.err;
  };
  expect_once({"launch", "--ranks", "3", "train", folder_.at("missing.toml")}, 3, "missing.toml");
  expect_once({"launch", "--ranks", "3", "train", "x.toml", "--bogus"}, 3, "--bogus");
  std::vector<std::string> with = words("windows", {});
  with.insert(with.end(), {"--set", "parallel.exchange=windows"});
  expect_once(with, 2, "parallel.exchange = \"windows\" cannot be");
}

TEST_F(Launch, WordsThatMakeNoSenseAreRefused) {
  const auto refused = [&](const std::vector<std::string>& arguments, const char* said) {
    const Ended ended = PleatProcess(folder_.path(), arguments).wait();
    EXPECT_EQ(ended.code, 65);
    EXPECT_NE(ended.err.find(said), std::string::npos) << ended.err;
  };
  refused({"launch", "train", "x.toml"}, "how many ranks?");
  refused({"launch", "--ranks", "2"}, "what shall the ranks do?");
  refused({"launch", "--ranks", "0", "train", "x.toml"}, "--ranks");
}

}  // namespace
}  // namespace pleat::train
