// Folders that two trainers would share, or that change under one: checkpoints belong to one run, a folder that
// is moved is not made anew, and what a killed start left is cleared away.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/posix_vfs.h"
#include "checkpoint/directory.h"
#include "resume/run_folder_support.h"
#include "run/lock.h"

namespace pleat::train {
namespace {

class SharedFolders : public RunFolder {
 protected:
  // A run on prepared data that ends only when something ends it.
  std::vector<std::string> endless(const std::string& run, const std::string& every) {
    testing::write_dataset(at("tokens"), 4000, 5);
    write_file(at("endless.toml"), testing::run_toml(at("tokens"), at(run), 1000000));
    return {"train", at("endless.toml"), "--set", "checkpoint.every=" + every};
  }
  int64_t steps_logged(const std::string& run) {
    const std::string log = pleat::testing::read_by_now(at(run + "/metrics.jsonl"));
    return std::count(log.begin(), log.end(), '\n');
  }
  template <class F>
  static void wait_while(PleatProcess& process, F condition) {
    while (process.running() && condition()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
};

// The file that named the owner counted only once the owner had written its asked.toml: who started at nearly
// the same time came in too.
TEST_F(SharedFolders, TwoStartsAtOnceDoNotShareAFolderOfCheckpoints) {
  {
    const run::Lock starting = run::Lock::take(at("outside"), run::kCheckpointKey);
    expect(train({"run.toml"}, "checkpoint.dir=outside"), 65,
           {"another trainer is at work in 'outside'", "just starting", "another checkpoint.dir"});
    EXPECT_FALSE(fs::exists(at("first")));
  }
  EXPECT_FALSE(fs::exists(at("outside"))) << "a refused start left something";

  std::vector<std::string> command = endless("one", "20");
  command.insert(command.end(), {"--set", "checkpoint.dir=" + at("outside")});
  fs::create_directory(at("console"));
  PleatProcess one(at("console"), command);
  wait_while(one, [&] { return !fs::exists(at("outside/LATEST")); });
  command.insert(command.end(), {"--set", "log.run_dir=" + at("two")});
  expect(pleat(command), 65, {"another trainer is at work in", "outside", "pid ", "since "});
  EXPECT_FALSE(fs::exists(at("two")));
  one.send(SIGKILL);
  one.wait();
  expect(pleat(command), 65, {"belong to the run in", "--init"});
  EXPECT_FALSE(fs::exists(at("two")));
}

TEST_F(SharedFolders, TheCheckpointsInAnotherRunAreNotTaken) {
  expect(train({"run.toml", "--stop-after", "2"}, "checkpoint.every=1"), 75);
  const std::map<std::string, std::string> before = tree(at("first"));
  const std::vector<std::string> words = {"lies in the folder of another run", "first", "--init"};
  fs::create_directory_symlink("first/checkpoints", at("link"));
  for (const char* place : {"first/checkpoints", "first/checkpoints/deeper", "first", "link"})
    expect(train({"run.toml"}, fmt::format("log.run_dir=second checkpoint.dir={}", place)), 65, words);
  // Of a run that has nothing yet but its lock.
  const run::Lock starting = run::Lock::take(at("third"));
  expect(train({"run.toml"}, "log.run_dir=second checkpoint.dir=third/checkpoints"), 65,
         {"lies in the folder of another run", "third"});
  EXPECT_EQ(tree(at("first")), before);
  EXPECT_FALSE(fs::exists(at("second")));
  EXPECT_FALSE(fs::exists(at("third/checkpoints")));
  // The other way round: a run begins around checkpoints that another one keeps there.
  expect(train({"run.toml"}, "log.run_dir=second checkpoint.dir=around/checkpoints"), 0);
  expect(train({"run.toml"}, "log.run_dir=around"), 65, {"belong to the run in", "second"});
  expect(train({"run.toml"}, "log.run_dir=second checkpoint.dir=around/checkpoints"), 0, {"already done"});
}

// The trainer made a new folder of the old name, and the same command came in there.
TEST_F(SharedFolders, ARunFolderThatIsMovedWhileItTrainsIsNotMadeAnew) {
  for (const bool replaced : {false, true}) {
    const std::string run = replaced ? "b" : "a", moved = run + "-moved";
    const std::vector<std::string> command = endless(run, "60");
    PleatProcess process(folder_.path(), command);
    wait_while(process, [&] { return steps_logged(run) < 63; });
    fs::rename(at(run), at(moved));
    if (replaced) fs::create_directory(at(run));
    expect(process.wait(), 74,
           {"log.run_dir", "was moved, removed or replaced",
            replaced ? "another folder has that name" : "nothing has that name", "not saved"});
    EXPECT_EQ(fs::exists(at(run)), replaced);
    EXPECT_TRUE(!replaced || fs::is_empty(at(run)));
    base::PosixVfs vfs;
    const int64_t saved = checkpoint::list_checkpoints(vfs, at(moved + "/checkpoints")).steps.at(0);
    expect(pleat({"train", at(moved), "--stop-after", std::to_string(saved + 2)}), 75,
           {fmt::format("checkpoints/step-{}", saved)});
  }
}

// Whoever takes the lock's file away lets others in.
TEST_F(SharedFolders, ALockThatIsRemovedStopsTheTrainer) {
  PleatProcess process(folder_.path(), endless("a", "60"));
  wait_while(process, [&] { return steps_logged("a") < 3; });
  fs::remove(at("a/LOCK"));
  expect(process.wait(), 74, {"LOCK' was removed or replaced"});
}

TEST_F(SharedFolders, WhatAKilledPreparationLeftIsRemoved) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  fs::create_directories(at("first/data"));
  const std::string gone = at(fmt::format("first/data/train-train.bin.tmp-{}-0", child)),
                    alive = at(fmt::format("first/data/train-train.bin.tmp-{}-1", ::getpid())),
                    other = at("first/data/mine.tmp-1");
  for (const std::string& path : {gone, alive, other}) write_file(path, "x");
  expect(train({"run.toml"}, "model.num_heads=7"), 65);
  EXPECT_TRUE(fs::exists(gone)) << "a refused start changed something";
  expect(train({"run.toml"}), 0);
  EXPECT_FALSE(fs::exists(gone));
  EXPECT_TRUE(fs::exists(alive));
  EXPECT_TRUE(fs::exists(other));
}

}  // namespace
}  // namespace pleat::train
