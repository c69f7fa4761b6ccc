// Launched ranks killed with SIGKILL at random moments, one of them or all with their launcher, most inside a save,
// and started again with the same command: there is always a checkpoint that verifies, never an older one than
// before, and the end is that of a run nobody touched. Kills come in chains, so a run also survives the kill of its own
// recovery.
//
// PLEAT_KILLS_ALL=1 makes 300 kills and says what they hit.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "base/posix_vfs.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "resume/resume_support.h"
#include "support/process.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;
using pleat::testing::Ended;
using pleat::testing::PleatProcess;
using SteadyClock = std::chrono::steady_clock;

struct KilledLayout {
  int ranks;
  std::vector<std::string> sets;
};

const std::vector<KilledLayout>& layouts_to_kill() {
  static const std::vector<KilledLayout> all = {
      {2, {"parallel.ep=2", "train.num_microbatches=2"}},
      {3, {"train.num_microbatches=3"}},
      {4, {"parallel.tp=2", "parallel.ep=2", "train.num_microbatches=2"}},
  };
  return all;
}

constexpr int64_t kStepsOfRanks = 24;
constexpr int kKillsPerChain = 5;

class RanksKill : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("PLEAT_TEST_SEED");
    seed_ = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    random_.seed(seed_);
    testing::write_dataset(folder_.at("data"), 6000, 7);
  }

  std::vector<std::string> command(const std::string& run, const KilledLayout& layout) {
    const std::string file = folder_.at(run + ".toml");
    pleat::testing::write_file(file, testing::run_toml(folder_.at("data"), folder_.at(run), kStepsOfRanks));
    std::vector<std::string> words = {
        "launch",  "--ranks", std::to_string(layout.ranks), "--grace", "10", "train", file,
        "--quiet", "--set",   "checkpoint.every=1"};
    for (const std::string& set : layout.sets) words.insert(words.end(), {"--set", set});
    return words;
  }

  std::string digest(const std::string& run) {
    return nlohmann::json::parse(
        pleat::testing::read_file(folder_.at(run) + "/summary.json"))["state_sha256"];
  }

  // The run that nobody touches, made when it is first asked for.
  const std::string& expected(size_t layout_idx) {
    std::string& digest_there = expected_[layout_idx];
    if (digest_there.empty()) {
      const std::string run = "whole-" + std::to_string(layout_idx);
      const Ended ended = PleatProcess(folder_.path(), command(run, layouts_to_kill()[layout_idx])).wait();
      EXPECT_EQ(ended.code, 0) << ended.err;
      digest_there = digest(run);
    }
    return digest_there;
  }

  std::set<std::string> leftovers(const std::string& run) {
    std::set<std::string> out;
    std::error_code ignored;
    for (fs::directory_iterator it(folder_.at(run) + "/checkpoints", ignored), end; it != end;
         it.increment(ignored))
      if (const std::string name = it->path().filename(); name.find(".tmp-") != std::string::npos)
        out.insert(name);
    return out;
  }

  // Nothing that is committed may be damaged. The newest step, -1 where there is none.
  int64_t newest(const std::string& run) {
    base::PosixVfs vfs;
    const checkpoint::Found found = checkpoint::find_newest(vfs, folder_.at(run) + "/checkpoints");
    for (const checkpoint::Skipped& s : found.skipped)
      EXPECT_FALSE(checkpoint::step_of(s.name)) << s.name << ": " << s.reason;
    return found.newest ? found.newest->step() : -1;
  }

  static std::vector<int> children_of(int process) {
    std::stringstream text(pleat::testing::read_by_now(fmt::format("/proc/{0}/task/{0}/children", process)));
    std::vector<int> found;
    for (int child = 0; text >> child;) found.push_back(child);
    return found;
  }

  // Gone, or dead and waiting for whoever should look.
  static bool is_dead(int process) {
    const std::string stat = pleat::testing::read_by_now(fmt::format("/proc/{}/stat", process));
    const size_t name_end = stat.rfind(") ");
    return name_end == std::string::npos || stat.at(name_end + 2) == 'Z' || stat.at(name_end + 2) == 'X';
  }

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }

  // One start and one kill; false where it came too late or too early to prove anything.
  bool kill_once(const std::string& run, const KilledLayout& layout) {
    const std::set<std::string> before = leftovers(run);
    const int64_t at_start = newest(run);
    const auto in_a_save = [&] {
      const std::set<std::string> now = leftovers(run);
      return !std::includes(before.begin(), before.end(), now.begin(), now.end());
    };
    PleatProcess process(folder_.path(), command(run, layout));
    // A step of its own first: a chain goes on.
    base::PosixVfs vfs;
    const std::string checkpoints = folder_.at(run) + "/checkpoints";
    const auto has_saved = [&] {
      if (!vfs.stat(checkpoints)) return false;
      const std::vector<int64_t> steps = checkpoint::list_checkpoints(vfs, checkpoints).steps;
      return !steps.empty() && steps.front() > at_start;
    };
    while (!has_saved()) {
      if (!process.running()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    const std::vector<int> ranks = children_of(process.id());
    if (ranks.size() != static_cast<size_t>(layout.ranks)) return false;
    const bool all = below(2) == 0;
    const bool aimed = below(4) > 0;
    if (aimed) {
      while (!in_a_save())
        if (!process.running()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(below(aim_us_)));
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(below(30000)));
    }
    if (all) {
      process.send(SIGKILL);
      for (const int rank : ranks) ::kill(rank, SIGKILL);
    } else {
      ::kill(ranks[static_cast<size_t>(below(layout.ranks))], SIGKILL);
    }
    const bool inside = in_a_save();  // a leader that is left removes what the save had written
    // How long a save lasts is the machine's business: later where they hit, sooner where they come too late.
    if (aimed) aim_us_ = std::clamp<int64_t>(inside ? aim_us_ * 3 / 2 : aim_us_ / 2, 20, 20'000);
    const Ended ended = process.wait();
    for (const int rank : ranks)
      for (const auto begin = SteadyClock::now(); !is_dead(rank);) {
        EXPECT_LT(SteadyClock::now() - begin, std::chrono::seconds(30)) << "a rank is still at work";
        if (HasFailure()) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    if (ended.code == 0) return false;  // it came after the last step
    num_of_all_ += all;
    num_in_saves_ += inside;
    EXPECT_GT(newest(run), at_start) << ended.err;
    return !HasFailure();
  }

  testing::TemporaryFolder folder_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::map<size_t, std::string> expected_;
  int num_of_all_ = 0, num_in_saves_ = 0;
  int64_t aim_us_ =
      1000;  // how long after the beginning of a save the kills that are aimed at it come, at most
};

TEST_F(RanksKill, EveryRunEndsAsIfNothingHadBeen) {
  SCOPED_TRACE(fmt::format("replay with PLEAT_TEST_SEED={}", seed_));
  const bool all = std::getenv("PLEAT_KILLS_ALL") != nullptr;
  const int wanted = all ? 300 : 3;
  const auto begin = SteadyClock::now();
  int kills = 0, missed = 0, runs = 0;
  for (size_t i = all ? 0 : static_cast<size_t>(below(3)); kills < wanted; ++i, ++runs) {
    const size_t layout_idx = i % layouts_to_kill().size();
    const KilledLayout& layout = layouts_to_kill()[layout_idx];
    const std::string run = "run-" + std::to_string(runs);
    for (int k = 0; k < kKillsPerChain && kills < wanted; ++k) {
      const bool hit = kill_once(run, layout);
      ASSERT_FALSE(HasFailure()) << "run " << runs << ", kill " << k;
      kills += hit, missed += !hit;
    }
    const Ended ended = PleatProcess(folder_.path(), command(run, layout)).wait();
    ASSERT_EQ(ended.code, 0) << ended.err;
    ASSERT_EQ(newest(run), kStepsOfRanks);
    ASSERT_EQ(digest(run), expected(layout_idx)) << "run " << runs;
    ASSERT_TRUE(leftovers(run).empty());
    fs::remove_all(folder_.at(run));
    ASSERT_LE(missed, 10 + kills) << "the kills do not hit what they are aimed at";
  }
  if (!all) return;
  EXPECT_GT(num_in_saves_, wanted / 4);
  fmt::print("{} kills ({} of all ranks), {} inside a save, {} runs, all resumed and equal: {:.0f} s\n",
             kills, num_of_all_, num_in_saves_, runs,
             std::chrono::duration<double>(SteadyClock::now() - begin).count());
}

}  // namespace
}  // namespace pleat::train
