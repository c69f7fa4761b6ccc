// Power loss on the simulated disk at every operation of a save, with many states the disk may be left in;
// errors of every operation; a full disk. The oracle is bits: what is visible afterwards is exactly an old or
// exactly the new checkpoint, and a save that returned is never lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/directory.h"

namespace pleat::checkpoint {
namespace {

using base::CrashMode;
using base::SimVfs;

const std::string kRun = "run";

struct Scenario {
  std::string name;
  SimVfs disk;                             // before the save, all durable
  std::map<int64_t, std::string> digests;  // of every state that may be seen
  std::vector<int64_t> before;             // allowed as the newest before the commit point
  int64_t step;                            // the one saved
};

// keep = 2, so with two older checkpoints the save also removes one.
Scenario after_steps(int64_t num_older) {
  Scenario s{fmt::format("{} older", num_older), {}, {}, {}, num_older + 1};
  std::mt19937_64 rng(1);
  for (int64_t step = 1; step <= num_older + 1; ++step) s.digests[step] = TestState(step).digest();
  for (int64_t step = 1; step <= num_older; ++step)
    save(s.disk, kRun, TestState(step).view(), small_options());
  s.disk.crash(CrashMode::KeepAll, rng);
  if (num_older > 0) s.before = {num_older};
  return s;
}

Scenario with_leftovers() {
  Scenario s = after_steps(2);
  s.name = "leftovers";
  s.disk.mkdir("run/step-3.tmp-0");
  const int file = s.disk.create("run/step-3.tmp-0/shard-000000");
  s.disk.write(file, "", std::vector<std::byte>(700));
  s.disk.close(file, "");
  std::mt19937_64 rng(2);
  s.disk.crash(CrashMode::KeepAll, rng);
  return s;
}

// The newest checkpoint is damaged and its step is saved again.
Scenario replacing_damage() {
  Scenario s = after_steps(3);
  s.name = "damaged step replaced";
  s.step = 3;
  s.before = {2};
  auto bytes = s.disk.contents("run/step-3/shard-000000");
  bytes[300] ^= std::byte{4};
  s.disk.set_contents("run/step-3/shard-000000", bytes);
  return s;
}

std::vector<Scenario> all_scenarios() {
  std::vector<Scenario> out;
  for (const int64_t older : {0, 1, 2, 4}) out.push_back(after_steps(older));
  out.push_back(with_leftovers());
  return out;
}

// Runs the save until power is lost; true when it returned before that.
bool run_save(SimVfs& disk, int64_t step) {
  try {
    save(disk, kRun, TestState(step).view(), small_options());
    return true;
  } catch (const base::PowerLoss&) {
    return false;
  }
}

int64_t count_operations(const Scenario& scenario) {
  SimVfs disk = scenario.disk;
  disk.reset_faults();
  EXPECT_TRUE(run_save(disk, scenario.step));
  return disk.num_operations();
}

std::string breach_after(SimVfs disk, const Scenario& scenario, CrashMode mode, std::mt19937_64& rng,
                         bool returned) {
  disk.crash(mode, rng);
  std::vector<int64_t> allowed = {scenario.step};
  if (!returned) allowed.insert(allowed.end(), scenario.before.begin(), scenario.before.end());
  if (!returned && scenario.before.empty() && !find_newest(disk, kRun).newest) return "";
  return breach(disk, kRun, scenario.digests, allowed);
}

TEST(PowerLoss, EveryOperationOfASaveIsSafe) {
  int64_t num_states = 0;
  for (const Scenario& scenario : all_scenarios()) {
    const int64_t num_operations = count_operations(scenario);
    ASSERT_GT(num_operations, 30);
    for (int64_t operation = 0; operation <= num_operations; ++operation) {
      SimVfs disk = scenario.disk;
      disk.reset_faults();
      disk.lose_power_at(operation);
      const bool returned = run_save(disk, scenario.step);
      ASSERT_EQ(returned, operation == num_operations);
      for (int sample = 0; sample < 32; ++sample, ++num_states) {
        std::mt19937_64 rng(static_cast<uint64_t>(operation * 1000 + sample));
        const CrashMode mode = base::kCrashModes[sample % std::size(base::kCrashModes)];
        ASSERT_EQ(breach_after(disk, scenario, mode, rng, returned), "")
            << scenario.name << ", operation " << operation << ", sample " << sample;
      }
    }
  }
  EXPECT_GT(num_states, 10000);
}

// A damaged step-3 is there from the start, so only the newest verified one is judged.
TEST(PowerLoss, ReplacingADamagedCheckpointIsSafe) {
  const Scenario scenario = replacing_damage();
  const int64_t num_operations = count_operations(scenario);
  for (int64_t operation = 0; operation <= num_operations; ++operation) {
    SimVfs disk = scenario.disk;
    disk.reset_faults();
    disk.lose_power_at(operation);
    const bool returned = run_save(disk, scenario.step);
    for (int sample = 0; sample < 12; ++sample) {
      std::mt19937_64 rng(static_cast<uint64_t>(operation * 1000 + sample));
      SimVfs after = disk;
      after.crash(base::kCrashModes[sample % std::size(base::kCrashModes)], rng);
      const Found found = find_newest(after, kRun);
      ASSERT_TRUE(found.newest);
      const int64_t newest = found.newest->step();
      ASSERT_TRUE(newest == 3 || (newest == 2 && !returned)) << operation;
      ASSERT_EQ(found.newest->state_sha256(), scenario.digests.at(newest));
    }
  }
}

// Up to five crashes in a row, at random operations, each leaving what it leaves to the next save. Half of
// them are kills, where the disk forgets nothing and nothing becomes durable.
TEST(PowerLoss, CrashesWhileRecoveringConverge) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    std::mt19937_64 rng(seed);
    SimVfs disk;
    std::map<int64_t, std::string> digests;
    int64_t acknowledged = 0;
    for (int depth = 0; depth < 8; ++depth) {
      const Found found = find_newest(disk, kRun);
      const int64_t newest = found.newest ? found.newest->step() : 0;
      ASSERT_GE(newest, acknowledged) << "seed " << seed;
      const int64_t step = newest + 1;
      digests[step] = TestState(step).digest();
      disk.reset_faults();
      const bool interrupted = depth > 0 && depth < 7;
      if (interrupted) disk.lose_power_at(static_cast<int64_t>(rng() % 120));
      const bool returned = run_save(disk, step);
      if (returned) {
        acknowledged = step;
        disk.reset_faults();
        ASSERT_TRUE(list_checkpoints(disk, kRun).leftovers.empty()) << "seed " << seed;
      }
      if (rng() % 2)
        disk.crash(base::kCrashModes[rng() % std::size(base::kCrashModes)], rng);
      else
        disk.reset_faults();
      ASSERT_TRUE(find_newest(disk, kRun).newest || acknowledged == 0);
      if (acknowledged > 0) {
        std::vector<int64_t> allowed;
        for (int64_t at_least = acknowledged; digests.contains(at_least); ++at_least)
          allowed.push_back(at_least);
        ASSERT_EQ(breach(disk, kRun, digests, allowed), "") << "seed " << seed;
      }
    }
  }
}

// Each fsync the disk forgets must show in at least one crash state; only that of LATEST, a hint, may not
// matter.
TEST(PowerLoss, EveryMissingFsyncIsCaught) {
  struct Case {
    int64_t num_older;
    int64_t num_fsyncs;
    std::vector<int64_t> harmless;
  };
  // Order: [parent of the directory,] 3 shards, MANIFEST, temporary directory, commit, LATEST[, removal].
  const Case cases[] = {{0, 8, {7}}, {1, 7, {6}}, {2, 8, {5, 6}}};
  for (const Case& c : cases) {
    const Scenario scenario = after_steps(c.num_older);
    SimVfs clean = scenario.disk;
    clean.reset_faults();
    ASSERT_TRUE(run_save(clean, scenario.step));
    ASSERT_EQ(clean.num_fsyncs(), c.num_fsyncs) << "the protocol changed: update the table above";
    const int64_t num_operations = clean.num_operations();
    for (int64_t fsync = 0; fsync < c.num_fsyncs; ++fsync) {
      bool caught = false;
      for (int64_t operation = num_operations; operation >= 0 && !caught; --operation) {
        SimVfs disk = scenario.disk;
        disk.reset_faults();
        disk.ignore_fsync(fsync);
        disk.lose_power_at(operation);
        const bool returned = run_save(disk, scenario.step);
        for (int sample = 0; sample < 18 && !caught; ++sample) {
          std::mt19937_64 rng(static_cast<uint64_t>(sample));
          const CrashMode mode = base::kCrashModes[sample % std::size(base::kCrashModes)];
          caught = !breach_after(disk, scenario, mode, rng, returned).empty();
        }
      }
      const bool harmless = std::find(c.harmless.begin(), c.harmless.end(), fsync) != c.harmless.end();
      EXPECT_EQ(caught, !harmless) << c.num_older << " older, fsync " << fsync;
    }
  }
}

// A disk that lies about fsync can lose a checkpoint, but never pass off wrong bits as one.
TEST(PowerLoss, LyingFsyncIsDetected) {
  int num_detected = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    std::mt19937_64 rng(seed);
    Scenario scenario = after_steps(1);
    SimVfs disk = scenario.disk;
    disk.reset_faults();
    disk.set_fsync_lies(true);
    if (rng() % 2) disk.lose_power_at(static_cast<int64_t>(rng() % 80));
    run_save(disk, 2);
    disk.crash(base::kCrashModes[seed % std::size(base::kCrashModes)], rng);
    const Found found = find_newest(disk, kRun);
    for (const Skipped& skipped : found.skipped) num_detected += step_of(skipped.name).has_value();
    ASSERT_TRUE(found.newest);
    ASSERT_EQ(found.newest->state_sha256(), scenario.digests.at(found.newest->step()));
  }
  EXPECT_GT(num_detected, 20);
}

// Every operation fails once or from then on, with every error. Older checkpoints stay, the error is a
// storage error, no file is fsynced twice after a failure, and the next save succeeds.
TEST(FailingOperation, OldCheckpointsStayAndTheNextSaveSucceeds) {
  const std::vector<int> all = {ENOSPC, EDQUOT, EIO, EINTR, EMFILE, EACCES, ESTALE, EROFS, ENOMEM};
  for (const Scenario& scenario : {after_steps(0), after_steps(2), with_leftovers()}) {
    const std::vector<int> errors = scenario.name == "2 older" ? all : std::vector<int>{ENOSPC, EIO};
    const int64_t num_operations = count_operations(scenario);
    for (int64_t operation = 0; operation <= num_operations; ++operation)
      for (const int error : errors)
        for (const base::Fault fault : {base::Fault::Once, base::Fault::Forever}) {
          SCOPED_TRACE(fmt::format("{}, operation {}, errno {}, {}", scenario.name, operation, error,
                                   fault == base::Fault::Once ? "once" : "for ever"));
          SimVfs disk = scenario.disk;
          disk.reset_faults();
          disk.fail_at(operation, error, fault);
          bool returned = false;
          try {
            save(disk, kRun, TestState(scenario.step).view(), small_options());
            returned = true;
          } catch (const base::Error& e) {
            ASSERT_EQ(e.code(), base::ExitCode::Storage) << e.what();
          }
          ASSERT_EQ(disk.num_open_files(), 0);
          ASSERT_EQ(disk.num_fsyncs_after_failure(), 0);
          disk.reset_faults();
          std::vector<int64_t> allowed = {scenario.step};
          if (!returned) allowed.insert(allowed.end(), scenario.before.begin(), scenario.before.end());
          if (returned || !scenario.before.empty() || find_newest(disk, kRun).newest) {
            ASSERT_EQ(breach(disk, kRun, scenario.digests, allowed), "");
          }
          // A save that returned is durable whatever happened on the way.
          if (returned && error == EIO) {
            SimVfs after = disk;
            std::mt19937_64 rng(7);
            after.crash(CrashMode::DropAll, rng);
            ASSERT_EQ(breach(after, kRun, scenario.digests, {scenario.step}), "");
          }
          auto digests = scenario.digests;
          const TestState next(scenario.step + 1);
          digests[scenario.step + 1] = next.digest();
          save(disk, kRun, next.view(), small_options());
          ASSERT_TRUE(list_checkpoints(disk, kRun).leftovers.empty());
          std::mt19937_64 rng(8);
          disk.crash(CrashMode::DropAll, rng);
          ASSERT_EQ(breach(disk, kRun, digests, {scenario.step + 1}), "");
        }
  }
}

TEST(FailingOperation, AFailedFsyncOfAFileIsAnsweredByANewFile) {
  const Scenario scenario = after_steps(1);
  const int64_t num_operations = count_operations(scenario);
  int num_rewritten = 0;
  for (int64_t operation = 0; operation < num_operations; ++operation) {
    SimVfs disk = scenario.disk;
    disk.reset_faults();
    disk.fail_at(operation, EIO, base::Fault::Once);
    try {
      const SaveResult result = save(disk, kRun, TestState(2).view(), small_options());
      num_rewritten += result.warnings.empty();
    } catch (const base::VfsError& e) {
      EXPECT_NE(e.op(), base::VfsOp::Fsync);
      EXPECT_NE(std::string(e.what()).find("run"), std::string::npos);
    }
  }
  // fsync and close of three shards and the manifest, plus reads whose close no one needs.
  EXPECT_GE(num_rewritten, 8);
}

// The disk is full at every 64 bytes of a save; when space returns, the next save succeeds.
TEST(FailingOperation, FullDiskIsANonEvent) {
  const Scenario scenario = after_steps(2);
  int failures = 0;
  for (int64_t capacity = 10000; capacity < 40000; capacity += 64) {
    SimVfs disk = scenario.disk;
    disk.reset_faults();
    disk.set_capacity(capacity);
    bool returned = false;
    try {
      save(disk, kRun, TestState(3).view(), small_options());
      returned = true;
    } catch (const base::VfsError& e) {
      ++failures;
      ASSERT_EQ(e.error_number(), ENOSPC);
    }
    ASSERT_EQ(breach(disk, kRun, scenario.digests, {returned ? 3 : 2}), "") << capacity;
    disk.reset_faults();
    save(disk, kRun, TestState(3).view(), small_options());
    ASSERT_EQ(breach(disk, kRun, scenario.digests, {3}), "") << capacity;
  }
  EXPECT_GT(failures, 50);
  EXPECT_LT(failures, 460);
}

// Errors while a run looks for its checkpoint: the right one is found or the run stops with a storage error;
// only a disk that cannot read it (EIO) makes it fall back to the older one, and it says so.
TEST(FailingOperation, LoadingNeverFallsBackSilently) {
  const Scenario scenario = after_steps(2);
  for (const int error : {EIO, EMFILE, EACCES, ESTALE})
    for (int64_t operation = 0; operation < 40; ++operation) {
      SimVfs disk = scenario.disk;
      disk.reset_faults();
      disk.fail_at(operation, error, base::Fault::Once);
      try {
        const Found found = find_newest(disk, kRun);
        ASSERT_TRUE(found.newest);
        if (found.newest->step() == 1) {
          ASSERT_EQ(error, EIO);
          ASSERT_EQ(found.skipped.at(0).name, "step-2");
        }
      } catch (const base::VfsError& e) {
        ASSERT_EQ(e.error_number(), error);
      }
    }
}

}  // namespace
}  // namespace pleat::checkpoint
