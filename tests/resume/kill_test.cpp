// Real processes stopped at random moments, by SIGKILL (more than half of those inside a save) and by
// SIGTERM, and started again with the same command: the end is that of a run nobody touched. Stops come in
// chains, so a run also survives the stop of its own recovery.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "config/run_files.h"
#include "report/jsonl_log.h"
#include "resume/resume_support.h"

namespace pleat::train {
namespace {

namespace fs = std::filesystem;
using pleat::testing::Ended;
using pleat::testing::PleatProcess;
using pleat::testing::read_file;

constexpr int64_t kSteps = 36;
constexpr int kStopsPerChain = 5;

enum class Stop { KillInSave, KillAnywhere, Terminate, TerminateAtStart, TerminateTwice };

const char* name_of(Stop stop) {
  constexpr const char* names[] = {"SIGKILL in a save", "SIGKILL anywhere", "SIGTERM", "SIGTERM at start-up",
                                   "SIGTERM twice"};
  return names[static_cast<int>(stop)];
}

// What saves that were cut short, or one that is under way, have in the folder.
std::set<std::string> leftovers_in(const std::string& directory) {
  std::set<std::string> out;
  std::error_code ignored;
  for (fs::directory_iterator it(directory, ignored), end; it != end; it.increment(ignored)) {
    const std::string name = it->path().filename();
    if (name.starts_with("step-") && name.find(".tmp-") != std::string::npos) out.insert(name);
  }
  return out;
}

int64_t lines_in(const std::string& path) {
  const std::string text = pleat::testing::read_by_now(path);
  return std::count(text.begin(), text.end(), '\n');
}

// Polls for `condition` until it holds or the process is gone.
template <class F>
bool wait_until(PleatProcess& process, std::chrono::microseconds pause, F condition) {
  for (int look = 0;; ++look) {
    if (condition()) return true;
    if (look % 16 == 0 && !process.running()) return false;
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
}

class Kill : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* given = std::getenv("PLEAT_TEST_SEED");
    seed_ = given ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    random_.seed(seed_);
    pleat::testing::write_file(folder_.at("text.txt"), testing::made_up_text(3000, 3));
  }

  std::vector<std::string> command(const std::string& run_dir, int64_t every) const {
    return {"train",
            config_path(run_dir),
            "--quiet",
            "--fault-step",
            "5",
            "--set",
            fmt::format("checkpoint.every={}", every)};
  }

  std::string config_path(const std::string& run_dir) const {
    const std::string path = folder_.at("config-" + fs::path(run_dir).filename().string() + ".toml");
    if (!fs::exists(path))
      pleat::testing::write_file(
          path, testing::run_toml(folder_.at("text.txt"), run_dir, kSteps) + "[checkpoint]\nkeep = 2\n");
    return path;
  }

  static nlohmann::json summary(const std::string& run_dir) {
    return nlohmann::json::parse(read_file(run_dir + "/summary.json"));
  }

  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }

  // One start and one stop; false when the stop missed what it was aimed at, which proves nothing.
  bool stop_once(Stop stop, const std::string& run_dir, int64_t every, int64_t after_step) {
    const std::string log = run_dir + "/metrics.jsonl", checkpoints = run_dir + "/checkpoints";
    const std::set<std::string> before = leftovers_in(checkpoints);
    const auto in_a_save = [&] {
      const std::set<std::string> now = leftovers_in(checkpoints);
      return !std::includes(before.begin(), before.end(), now.begin(), now.end());
    };
    PleatProcess process(folder_.path(), command(run_dir, every));
    const auto milliseconds = [&](int64_t n) {
      std::this_thread::sleep_for(std::chrono::microseconds(below(n * 1000)));
    };
    if (stop == Stop::TerminateAtStart) {
      if (!wait_until(process, std::chrono::microseconds(50), [&] { return process.catches(SIGTERM); }))
        return false;
      milliseconds(40);
    } else {
      // The log of a resumed run begins with the lines of the old one: only a longer one is progress.
      const int64_t target = after_step + 1;
      if (!wait_until(process, std::chrono::microseconds(200),
                      [&] { return lines_in(log) >= target && process.catches(SIGTERM); }))
        return false;
      if (stop == Stop::KillInSave) {
        if (!wait_until(process, std::chrono::microseconds(0), in_a_save)) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(below(300)));
      } else {
        milliseconds(12);
      }
    }
    const bool kill = stop == Stop::KillInSave || stop == Stop::KillAnywhere;
    process.send(kill ? SIGKILL : SIGTERM);
    const int64_t step_at_signal = lines_in(log);
    if (stop == Stop::TerminateTwice) milliseconds(5), process.send(SIGTERM);
    const Ended ended = process.wait();
    if (kill) {
      if (ended.signal != SIGKILL) return false;
      return stop == Stop::KillAnywhere || in_a_save();
    }
    if (ended.code == 0) return false;  // it came after the last step
    EXPECT_EQ(ended.code, 75) << ended.err;
    const int64_t last_step = lines_in(log);
    EXPECT_LE(last_step, step_at_signal + 2)
        << "one step may be under way, and one more before the signal arrives";
    base::PosixVfs vfs;
    const checkpoint::Found found = checkpoint::find_newest(vfs, checkpoints);
    if (last_step > 0) {
      EXPECT_TRUE(found.newest && found.newest->step() == last_step)
          << "the last finished step " << last_step << " is not saved";
      EXPECT_EQ(summary(run_dir).at("state_sha256"), state_in(run_dir))
          << "what was saved is not what was left";
    }
    EXPECT_EQ(summary(run_dir).at("exit_code"), 75);
    return true;
  }

  // The state the newest checkpoint restores to.
  std::string state_in(const std::string& run_dir) {
    const config::Config config = config::read_record(run_dir);
    base::PosixVfs vfs;
    const checkpoint::Found found = checkpoint::find_newest(vfs, config.checkpoint.dir);
    if (!reader_) reader_.emplace(config);
    reader_->restore(*found.newest);
    return reader_->state_sha256();
  }

  testing::TemporaryFolder folder_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  std::optional<Trainer> reader_;
};

void expect_same_number(double a, double b, const char* what, int64_t step) {
  EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b)))
      << what << " of step " << step << ": " << a << " and " << b;
}

void expect_same_log(const std::vector<report::StepRecord>& a, const std::vector<report::StepRecord>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].step, int64_t(i) + 1);
    ASSERT_EQ(b[i].step, a[i].step);
    expect_same_number(a[i].loss, b[i].loss, "loss", a[i].step);
    expect_same_number(a[i].lr, b[i].lr, "learning rate", a[i].step);
    expect_same_number(a[i].grad_norm, b[i].grad_norm, "gradient norm", a[i].step);
    ASSERT_EQ(a[i].aux.size(), b[i].aux.size());
    for (const auto& [name, value] : a[i].aux)
      expect_same_number(value, b[i].aux.at(name), name.c_str(), a[i].step);
    EXPECT_EQ(a[i].tokens, b[i].tokens);
    EXPECT_EQ(a[i].refused_steps, b[i].refused_steps);
    ASSERT_EQ(a[i].eval.has_value(), b[i].eval.has_value());
    if (a[i].eval) expect_same_number(a[i].eval->loss, b[i].eval->loss, "validation loss", a[i].step);
  }
}

TEST_F(Kill, TwentyRandomStops) {
  SCOPED_TRACE(fmt::format("replay with PLEAT_TEST_SEED={}", seed_));
  const std::string reference = folder_.at("reference");
  const Ended undisturbed = PleatProcess(folder_.path(), command(reference, 2)).wait();
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
  const auto expected_log = report::read_log(reference + "/metrics.jsonl");
  ASSERT_EQ(expected_log.size(), size_t(kSteps));
  ASSERT_EQ(expected_log.back().refused_steps, 1);
  const nlohmann::json expected = summary(reference);

  std::vector<Stop> stops;
  for (const auto& [count, stop] :
       {std::pair(6, Stop::KillInSave), std::pair(4, Stop::KillAnywhere), std::pair(5, Stop::Terminate),
        std::pair(2, Stop::TerminateAtStart), std::pair(3, Stop::TerminateTwice)})
    for (int i = 0; i < count; ++i) stops.push_back(stop);
  ASSERT_EQ(stops.size(), 20u);
  std::shuffle(stops.begin(), stops.end(), random_);

  std::string story;
  const auto finish = [&](const std::string& run_dir, int64_t every) {
    SCOPED_TRACE(story);
    const Ended last = PleatProcess(folder_.path(), command(run_dir, every)).wait();
    ASSERT_EQ(last.code, 0) << last.err;
    const nlohmann::json result = summary(run_dir);
    EXPECT_EQ(result.at("state_sha256"), expected.at("state_sha256"));
    EXPECT_EQ(result.at("final_loss"), expected.at("final_loss"));
    EXPECT_EQ(result.at("refused_steps"), expected.at("refused_steps"));
    EXPECT_EQ(result.at("sample"), expected.at("sample"));
    expect_same_log(expected_log, report::read_log(run_dir + "/metrics.jsonl"));
  };

  size_t num_stopped = 0;
  int num_attempts = 0;
  for (int chain = 0; num_stopped < stops.size(); ++chain) {
    const std::string run_dir = folder_.at(fmt::format("chain{}", chain));
    const int64_t every = 1 + chain % 2;
    story.clear();
    for (int in_chain = 0; in_chain < kStopsPerChain && num_stopped < stops.size();) {
      base::PosixVfs vfs;
      const checkpoint::Found found = checkpoint::find_newest(vfs, run_dir + "/checkpoints");
      const int64_t done = found.newest ? found.newest->step() : 0;
      // Too near the end for a stop to be sure of a step to fall into: the next ones get a new run.
      if (done > kSteps - 8) break;
      ASSERT_LT(++num_attempts, 100) << "the stops keep missing: " << story;
      const int64_t room = (kSteps - 8 - done) / (kStopsPerChain - in_chain);
      const int64_t after = done + below(std::max<int64_t>(room, 1));
      story += fmt::format("{} after step {} (resumed from {}); ", name_of(stops[num_stopped]), after, done);
      SCOPED_TRACE(story);
      if (stop_once(stops[num_stopped], run_dir, every, after)) ++num_stopped, ++in_chain;
      if (HasFailure()) return;
    }
    finish(run_dir, every);
    if (HasFailure()) return;
  }
}

// Killed after the last save and before the summary: the same command only writes what is missing.
TEST_F(Kill, AfterTheLastStep) {
  const std::string run_dir = folder_.at("run");
  std::vector<std::string> arguments = command(run_dir, 0);
  for (const char* set : {"data.valid_split=0.2", "train.eval_every=8", "train.steps=10"})
    arguments.insert(arguments.end(), {"--set", set});
  ASSERT_EQ(PleatProcess(folder_.path(), arguments).wait().code, 0);
  const nlohmann::json first = summary(run_dir);
  fs::remove(run_dir + "/summary.json");
  ASSERT_EQ(PleatProcess(folder_.path(), arguments).wait().code, 0);
  const nlohmann::json second = summary(run_dir);
  for (const char* key : {"state_sha256", "steps", "final_loss", "best_eval_loss", "validation_loss",
                          "validation_bits_per_byte", "bigram_bits_per_byte", "sample"})
    EXPECT_EQ(first.at(key), second.at(key)) << key;
}

TEST_F(Kill, ResumeSettingIsObeyed) {
  const std::string run_dir = folder_.at("run");
  const auto with = [&](const char* resume, const char* steps) {
    std::vector<std::string> arguments = command(run_dir, 1);
    arguments.insert(arguments.end(), {"--set", fmt::format("checkpoint.resume={}", resume), "--set",
                                       fmt::format("train.steps={}", steps)});
    return PleatProcess(folder_.path(), arguments).wait();
  };
  Ended ended = with("must", "4");
  EXPECT_EQ(ended.code, 65);
  EXPECT_NE(ended.err.find("holds no checkpoint"), std::string::npos) << ended.err;
  EXPECT_EQ(with("never", "4").code, 0);
  ended = with("never", "6");
  EXPECT_EQ(ended.code, 65);
  EXPECT_NE(ended.err.find("already holds checkpoints"), std::string::npos) << ended.err;
  EXPECT_EQ(with("must", "6").code, 0);
  EXPECT_EQ(lines_in(run_dir + "/metrics.jsonl"), 6);
}

}  // namespace
}  // namespace pleat::train
