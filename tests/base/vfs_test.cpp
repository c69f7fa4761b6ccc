// Both disks against the same contract, then what only one of them can do.
#include "base/vfs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "base/posix_vfs.h"
#include "base/sim_vfs.h"

namespace pleat::base {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void put(Vfs& vfs, const std::string& path, std::string_view text, bool sync = true) {
  File file = File::create(vfs, path);
  file.write(bytes_of(text));
  if (sync) file.fsync();
  file.close();
}

int errno_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const VfsError& error) {
    EXPECT_EQ(error.code(), ExitCode::Storage);
    return error.error_number();
  }
  ADD_FAILURE() << "no VfsError";
  return 0;
}

void check_contract(Vfs& vfs, const std::string& root) {
  vfs.mkdir(root);
  EXPECT_EQ(errno_of([&] { vfs.mkdir(root); }), EEXIST);
  const std::string a = join_path(root, "a"), b = join_path(root, "b"), sub = join_path(root, "sub");
  EXPECT_FALSE(vfs.stat(a));
  put(vfs, a, "hello world");
  EXPECT_EQ(read_file(vfs, a, 11), "hello world");
  EXPECT_THROW(read_file(vfs, a, 10), Error);
  EXPECT_EQ(errno_of([&] { vfs.create(a); }), EEXIST);
  EXPECT_EQ(errno_of([&] { vfs.open_read(b); }), ENOENT);
  EXPECT_EQ(vfs.stat(a)->size, 11);
  EXPECT_EQ(vfs.stat(a)->kind, FileKind::Regular);
  EXPECT_EQ(vfs.stat(root)->kind, FileKind::Directory);
  {
    File file = File::open_read(vfs, a);
    std::byte out[8];
    EXPECT_EQ(file.pread(out, 6), 5u);
    EXPECT_EQ(file.pread(out, 11), 0u);
    EXPECT_EQ(file.pread(out, 100), 0u);
  }
  put(vfs, b, "other");
  vfs.rename(b, a);
  EXPECT_EQ(read_file(vfs, a, 100), "other");
  EXPECT_FALSE(vfs.stat(b));
  vfs.mkdir(sub);
  put(vfs, join_path(sub, "x"), "");
  EXPECT_EQ(errno_of([&] { vfs.rmdir(sub); }), ENOTEMPTY);
  EXPECT_EQ(errno_of([&] { vfs.rename(join_path(root, "none"), a); }), ENOENT);
  EXPECT_EQ(errno_of([&] { vfs.open_read(join_path(a, "below")); }), ENOTDIR);
  EXPECT_EQ(errno_of([&] { vfs.unlink(join_path(root, "none")); }), ENOENT);
  EXPECT_EQ(errno_of([&] { vfs.list(join_path(root, "none")); }), ENOENT);
  EXPECT_EQ(errno_of([&] { vfs.fsync_dir(join_path(root, "none")); }), ENOENT);
  EXPECT_EQ(vfs.list(root), (std::vector<std::string>{"a", "sub"}));
  vfs.fsync_dir(root);
  vfs.remove_all(root);
  EXPECT_FALSE(vfs.stat(root));
  vfs.remove_all(root);
}

TEST(Vfs, PosixKeepsTheContract) {
  PosixVfs vfs;
  const std::string root = ::testing::TempDir() + fmt::format("pleat_vfs_{}", ::getpid());
  vfs.remove_all(root);
  check_contract(vfs, root);
}

TEST(Vfs, SimKeepsTheContract) {
  SimVfs vfs;
  check_contract(vfs, "root");
  EXPECT_EQ(vfs.num_open_files(), 0);
}

TEST(Vfs, Paths) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(parent_path("a"), ".");
  EXPECT_EQ(parent_path("a/"), ".");
  EXPECT_EQ(parent_path("a/b"), "a");
  EXPECT_EQ(parent_path("a//b//"), "a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("/a/b"), "/a");
}

TEST(Vfs, ErrorsNameOperationAndPath) {
  SimVfs vfs;
  try {
    vfs.open_read("no/where");
    FAIL();
  } catch (const VfsError& error) {
    EXPECT_STREQ(error.what(), "cannot open 'no/where': No such file or directory (errno 2)");
    EXPECT_EQ(error.op(), VfsOp::OpenRead);
  }
}

TEST(Vfs, PosixRefusesLinksPipesAndDirectories) {
  PosixVfs vfs;
  const std::string root = ::testing::TempDir() + fmt::format("pleat_vfs_odd_{}", ::getpid());
  vfs.remove_all(root);
  vfs.mkdir(root);
  put(vfs, root + "/real", "x");
  std::filesystem::create_symlink(root + "/real", root + "/link");
  ASSERT_EQ(::mkfifo((root + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(errno_of([&] { vfs.open_read(root + "/link"); }), ELOOP);
  EXPECT_EQ(vfs.stat(root + "/link")->kind, FileKind::Other);
  EXPECT_THROW(vfs.open_read(root + "/pipe"), Error);
  EXPECT_THROW(vfs.open_read(root), Error);
  vfs.mkdir(root + "/victim");
  put(vfs, root + "/victim/keep", "x");
  vfs.mkdir(root + "/doomed");
  std::filesystem::create_symlink(root + "/victim", root + "/doomed/link");
  vfs.remove_all(root + "/doomed");
  EXPECT_TRUE(vfs.stat(root + "/victim/keep")) << "removal must not follow links";
  vfs.remove_all(root);
}

// Does at most three bytes a call, and is interrupted every other time.
class HaltingVfs : public PosixVfs {
 protected:
  ssize_t sys_write(int file, const void* bytes, size_t count) override {
    if (interrupted()) return -1;
    return PosixVfs::sys_write(file, bytes, std::min<size_t>(count, 3));
  }
  ssize_t sys_pread(int file, void* out, size_t count, off_t offset) override {
    if (interrupted()) return -1;
    return PosixVfs::sys_pread(file, out, std::min<size_t>(count, 3), offset);
  }

 private:
  bool interrupted() {
    errno = EINTR;
    return ++num_calls_ % 2 == 1;
  }
  int num_calls_ = 0;
};

TEST(Vfs, PosixFinishesShortAndInterruptedCalls) {
  HaltingVfs vfs;
  const std::string root = ::testing::TempDir() + fmt::format("pleat_vfs_short_{}", ::getpid());
  vfs.remove_all(root);
  vfs.mkdir(root);
  put(vfs, root + "/a", "0123456789abcdef");
  EXPECT_EQ(read_file(vfs, root + "/a", 100), "0123456789abcdef");
  vfs.remove_all(root);
}

TEST(SimVfs, OnlyWhatWasSyncedSurvives) {
  std::mt19937_64 rng(1);
  SimVfs vfs;
  vfs.mkdir("d");
  put(vfs, "d/synced", "synced");
  put(vfs, "d/unsynced", "unsynced", false);
  vfs.fsync_dir("d");
  SimVfs no_parent = vfs;
  no_parent.crash(CrashMode::DropAll, rng);
  EXPECT_FALSE(no_parent.stat("d")) << "the directory's own name was not durable";
  vfs.fsync_dir("/");
  put(vfs, "d/nameless", "x");
  vfs.crash(CrashMode::DropAll, rng);
  EXPECT_EQ(vfs.list("d"), (std::vector<std::string>{"synced", "unsynced"}));
  EXPECT_EQ(read_file(vfs, "d/synced", 100), "synced");
  EXPECT_EQ(read_file(vfs, "d/unsynced", 100), "");
}

TEST(SimVfs, KeepAllKeepsAllAndRenameIsAtomic) {
  SimVfs start;
  put(start, "old", "old");
  put(start, "new", "new");
  start.fsync_dir("/");
  start.rename("new", "old");
  int num_new = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 rng(seed);
    SimVfs vfs = start;
    const CrashMode mode = kCrashModes[seed % std::size(kCrashModes)];
    vfs.crash(mode, rng);
    const std::string text = read_file(vfs, "old", 100);
    EXPECT_TRUE(text == "old" || text == "new");
    EXPECT_EQ(vfs.stat("new").has_value(), text == "old");
    if (mode == CrashMode::KeepAll) {
      EXPECT_EQ(text, "new");
    }
    if (mode == CrashMode::DropAll) {
      EXPECT_EQ(text, "old");
    }
    num_new += text == "new";
  }
  EXPECT_GT(num_new, 15);
  EXPECT_LT(num_new, 45);
}

TEST(SimVfs, WritesTearAtSectors) {
  bool mixed = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SimVfs vfs;
    const int file = vfs.create("f");
    vfs.fsync_dir("/");
    vfs.write(file, "f", std::vector<std::byte>(2048, std::byte{1}));
    std::mt19937_64 rng(seed);
    vfs.crash(CrashMode::Tear512, rng);
    const auto bytes = vfs.contents("f");
    int num_kept = 0;
    for (size_t sector = 0; sector < bytes.size() / 512; ++sector) {
      for (size_t i = 1; i < 512; ++i) ASSERT_EQ(bytes[sector * 512], bytes[sector * 512 + i]);
      num_kept += bytes[sector * 512] == std::byte{1};
    }
    mixed = mixed || (num_kept > 0 && num_kept < 4);
  }
  EXPECT_TRUE(mixed);
}

TEST(SimVfs, AFailedFsyncForgetsItsBytesForEver) {
  std::mt19937_64 rng(1);
  SimVfs vfs;
  const int file = vfs.create("f");
  vfs.fsync_dir("/");
  vfs.write(file, "f", bytes_of("lost"));
  vfs.fail_at(vfs.num_operations(), EIO, Fault::Once);
  EXPECT_EQ(errno_of([&] { vfs.fsync(file, "f"); }), EIO);
  vfs.fsync(file, "f");
  EXPECT_EQ(vfs.num_fsyncs_after_failure(), 1);
  EXPECT_EQ(read_file(vfs, "f", 100), "lost") << "reads still show it";
  vfs.crash(CrashMode::KeepAll, rng);
  EXPECT_EQ(read_file(vfs, "f", 100), "");
}

TEST(SimVfs, FaultsComeWhenPlanned) {
  SimVfs vfs;
  vfs.fail_at(1, ENOSPC, Fault::Once);
  const int file = vfs.create("f");
  EXPECT_EQ(errno_of([&] { vfs.write(file, "f", bytes_of("12345678")); }), ENOSPC);
  EXPECT_EQ(vfs.contents("f").size(), 4u) << "half a write stays";
  vfs.write(file, "f", bytes_of("5678"));
  vfs.close(file, "f");
  vfs.reset_faults();
  vfs.fail_at(0, EACCES, Fault::Forever);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(errno_of([&] { vfs.list("/"); }), EACCES);
  vfs.reset_faults();
  vfs.lose_power_at(1);
  vfs.list("/");
  EXPECT_THROW(vfs.unlink("f"), PowerLoss);
  EXPECT_THROW(vfs.list("/"), PowerLoss);
  vfs.reset_faults();
  EXPECT_TRUE(vfs.stat("f")) << "the interrupted operation had no effect";
  vfs.set_capacity(10);
  const int more = vfs.create("g");
  EXPECT_EQ(errno_of([&] { vfs.write(more, "g", bytes_of("12345678")); }), ENOSPC);
  EXPECT_EQ(vfs.contents("g").size(), 2u);
}

TEST(SimVfs, LiesAboutFsyncWhenTold) {
  std::mt19937_64 rng(1);
  for (const bool lies : {false, true}) {
    SimVfs vfs;
    vfs.set_fsync_lies(lies);
    put(vfs, "f", "x");
    vfs.fsync_dir("/");
    vfs.crash(CrashMode::DropAll, rng);
    EXPECT_EQ(vfs.stat("f").has_value(), !lies);
  }
  SimVfs vfs;
  vfs.ignore_fsync(0);
  put(vfs, "f", "x");
  vfs.fsync_dir("/");
  vfs.crash(CrashMode::DropAll, rng);
  EXPECT_EQ(vfs.stat("f")->size, 0);
}

}  // namespace
}  // namespace pleat::base
