// Real processes killed with SIGKILL before every operation of a save on the real file system.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/posix_vfs.h"
#include "checkpoint/checkpoint_support.h"
#include "checkpoint/directory.h"

namespace pleat::checkpoint {
namespace {

// The page cache outlives the process, so a kill cannot tell a real fsync from none: it is only a kill point
// here.
class UnsyncedVfs : public base::PosixVfs {
 public:
  void fsync(int, const std::string&) override { before(base::VfsOp::Fsync); }
  void fsync_dir(const std::string&) override { before(base::VfsOp::FsyncDir); }
};

class KillVfs : public UnsyncedVfs {
 public:
  explicit KillVfs(int64_t kill_point) : left_(kill_point) {}

 protected:
  void before(base::VfsOp) override {
    if (left_-- == 0) ::raise(SIGKILL);
  }

 private:
  int64_t left_;
};

// True when the child was killed, false when its save returned.
bool killed_in_save(const std::string& directory, int64_t step, int64_t kill_point) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      KillVfs vfs(kill_point);
      save(vfs, directory, TestState(step).view(), small_options());
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFSIGNALED(status)) {
    EXPECT_EQ(WTERMSIG(status), SIGKILL);
    return true;
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
  return false;
}

class Kill : public ::testing::Test {
 protected:
  void SetUp() override { vfs_.remove_all(root_), vfs_.mkdir(root_); }
  void TearDown() override { vfs_.remove_all(root_); }

  UnsyncedVfs vfs_;
  const std::string root_ = ::testing::TempDir() + fmt::format("pleat_kill_{}", ::getpid());
};

TEST_F(Kill, BeforeEveryOperationOfASave) {
  std::map<int64_t, std::string> digests;
  for (int64_t step = 1; step <= 4; ++step) digests[step] = TestState(step).digest();
  const std::string start = root_ + "/start", run = root_ + "/run";
  for (const int64_t step : {1, 2}) save(vfs_, start, TestState(step).view(), small_options());
  for (int64_t kill_point = 0;; ++kill_point) {
    ASSERT_LT(kill_point, 1000);
    vfs_.remove_all(run);
    std::filesystem::copy(start, run, std::filesystem::copy_options::recursive);
    const bool killed = killed_in_save(run, 3, kill_point);
    ASSERT_EQ(breach(vfs_, run, digests, killed ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3}), "")
        << "kill point " << kill_point;
    const Found found = find_newest(vfs_, run);
    const TestState state(found.newest->step());
    Targets targets(state);
    restore(*found.newest, targets.list());
    ASSERT_TRUE(targets.equals(state));
    // Every eighth time, also the life after it; the next save must clean up.
    if (kill_point % 8 == 0) {
      save(vfs_, run, TestState(4).view(), small_options());
      ASSERT_EQ(breach(vfs_, run, digests, {4}), "");
      ASSERT_TRUE(list_checkpoints(vfs_, run).leftovers.empty());
    }
    if (!killed) {
      EXPECT_GT(kill_point, 50);
      break;
    }
  }
}

TEST_F(Kill, TwiceInARowFromNothing) {
  const std::string run = root_ + "/run";
  const std::map<int64_t, std::string> digests = {{1, TestState(1).digest()}};
  for (int64_t kill_point = 0; kill_point < 60; kill_point += 7) {
    vfs_.remove_all(run);
    killed_in_save(run, 1, kill_point);
    killed_in_save(run, 1, kill_point + 5);
    save(vfs_, run, TestState(1).view(), small_options());
    ASSERT_EQ(breach(vfs_, run, digests, {1}), "") << kill_point;
    ASSERT_TRUE(list_checkpoints(vfs_, run).leftovers.empty());
  }
}

}  // namespace
}  // namespace pleat::checkpoint
