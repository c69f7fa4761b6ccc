// One trainer per run folder: who comes second is told who is there; a killed holder leaves nothing in the
// way; a file system that cannot lock is named. A folder that was moved is noticed; what the killed left goes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <filesystem>

#include "run/leftovers.h"
#include "run/lock.h"
#include "run/place.h"
#include "support/process.h"
#include "support/refusal.h"

namespace pleat::run {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

TEST(RunLock, ASecondTrainerIsToldWhoIsThere) {
  const TemporaryFolder folder;
  const std::string run = folder.at("runs/a");
  {
    Lock first = Lock::take(run);
    EXPECT_NE(message_of([&] { Lock::take(run); }).find("just starting"), std::string::npos);
    first.sign();
    const std::string message = message_of([&] { Lock::take(run); });
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    for (const std::string& word :
         {run, std::string(host), fmt::format("pid {}", ::getpid()), std::string("since 20")})
      EXPECT_NE(message.find(word), std::string::npos) << word << "\n" << message;
  }
  Lock::take(run).sign();
}

TEST(RunLock, AKilledHolderLeavesNothingInTheWay) {
  const TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Lock lock = Lock::take(folder.path());
    lock.sign();
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(message_of([&] { Lock::take(folder.path()); }).find(fmt::format("pid {}", child)),
            std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  Lock again = Lock::take(folder.path());
  // What the killed one wrote still stands there; nobody is told that it is at work.
  EXPECT_NE(message_of([&] { Lock::take(folder.path()); }).find("just starting"), std::string::npos);
  ::close(ready[0]), ::close(ready[1]);
}

TEST(RunLock, ALockThatWasNeverSignedLeavesTheFolderAsItWas) {
  const TemporaryFolder folder;
  { const Lock lock = Lock::take(folder.at("new")); }
  EXPECT_FALSE(std::filesystem::exists(folder.at("new")));
  { Lock::take(folder.at("old")).sign(); }
  const std::string before = testing::read_file(folder.at("old/LOCK"));
  { const Lock lock = Lock::take(folder.at("old")); }
  EXPECT_EQ(testing::read_file(folder.at("old/LOCK")), before);
}

TEST(RunLock, ALockFileThatWasReplacedIsNotKept) {
  const TemporaryFolder folder;
  Lock lock = Lock::take(folder.at("run"));
  EXPECT_TRUE(Lock::is_held(folder.at("run")));
  EXPECT_FALSE(Lock::is_held(folder.at("elsewhere")));
  EXPECT_EQ(message_of([&] { lock.require_kept(); }), "");
  std::filesystem::remove(folder.at("run/LOCK"));
  EXPECT_FALSE(Lock::is_held(folder.at("run")));
  const Lock other = Lock::take(folder.at("run"));
  EXPECT_NE(message_of([&] { lock.require_kept(); }).find("removed or replaced"), std::string::npos);
}

// Nothing is waited for, followed or written: the error says what is there.
TEST(RunLock, ALockThatIsNoPlainFileIsRefused) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const auto expect_refused = [&](const std::string& name, const std::string& what) {
    const std::string run = folder.at(name);
    for (const std::string& message :
         {message_of([&] { Lock::take(run); }), message_of([&] { require_lock_is_file(run); })})
      EXPECT_NE(message.find(fmt::format("'{}/LOCK' is {}; needed a plain file", run, what)),
                std::string::npos)
          << message;
    EXPECT_FALSE(Lock::is_held(run));
    EXPECT_NE(fs::symlink_status(run + "/LOCK").type(), fs::file_type::not_found) << "it was removed";
  };
  for (const char* name : {"pipe", "link", "nowhere", "folder", "device"})
    fs::create_directory(folder.at(name));
  ASSERT_EQ(::mkfifo(folder.at("pipe/LOCK").c_str(), 0644), 0);
  expect_refused("pipe", "a pipe");
  testing::write_file(folder.at("victim"), "precious");
  fs::create_symlink(folder.at("victim"), folder.at("link/LOCK"));
  expect_refused("link", "a symbolic link");
  EXPECT_EQ(testing::read_file(folder.at("victim")), "precious");
  fs::create_symlink(folder.at("gone"), folder.at("nowhere/LOCK"));
  expect_refused("nowhere", "a symbolic link");
  EXPECT_FALSE(fs::exists(folder.at("gone")));
  fs::create_directory(folder.at("folder/LOCK"));
  expect_refused("folder", "a folder");
  // Who may not make devices cannot look at one either.
  if (::mknod(folder.at("device/LOCK").c_str(), S_IFCHR | 0666, makedev(1, 3)) == 0)
    expect_refused("device", "a device");
  EXPECT_EQ(message_of([&] { require_lock_is_file(folder.at("not there")); }), "");
  { Lock::take(folder.at("plain")).sign(); }
  EXPECT_EQ(message_of([&] { require_lock_is_file(folder.at("plain")); }), "");
}

TEST(RunPlace, AFolderIsKnownByMoreThanItsName) {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  fs::create_directory(folder.at("run"));
  const Place place(folder.at("run"), kRunKey);
  EXPECT_EQ(message_of([&] { place.require_unmoved(); }), "");
  fs::rename(folder.at("run"), folder.at("moved"));
  EXPECT_NE(message_of([&] { place.require_unmoved(); }).find("nothing has that name"), std::string::npos);
  fs::create_directory(folder.at("run"));
  EXPECT_NE(message_of([&] { place.require_unmoved(); }).find("another folder has that name"),
            std::string::npos);
  fs::remove(folder.at("run"));
  fs::create_directory_symlink("moved", folder.at("run"));
  EXPECT_EQ(message_of([&] { place.require_unmoved(); }), "") << "the name leads to the folder again";
}

TEST(RunLeftovers, OnlyFilesOfProcessesThatAreGoneAreRemoved) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::vector<std::string> gone = {fmt::format("a.bin.tmp-{}-0", child),
                                         fmt::format("a.idx.tmp-{}-12", ::getpid())},
                                 kept = {fmt::format("a.bin.tmp-{}-0", ::getppid()),
                                         fmt::format("a.bin.tmp-{}", child),
                                         fmt::format("a.bin.tmp-{}-x", child),
                                         fmt::format("a.bin.tmp-{}-1.txt", child),
                                         "a.bin.tmp--5-1",
                                         "a.bin"};
  for (const auto& names : {gone, kept})
    for (const std::string& name : names) testing::write_file(folder.at(name), "x");
  remove_leftovers(folder.path());
  remove_leftovers(folder.at("not there"));
  for (const std::string& name : gone) EXPECT_FALSE(std::filesystem::exists(folder.at(name))) << name;
  for (const std::string& name : kept) EXPECT_TRUE(std::filesystem::exists(folder.at(name))) << name;
}

TEST(RunLock, AFileSystemWithoutWorkingLocksIsNamed) {
  const TemporaryFolder folder;
  const FlockCall refuses = [](int, int) {
    errno = ENOLCK;
    return -1;
  };
  const FlockCall agrees = [](int, int) { return 0; };
  for (const FlockCall call : {refuses, agrees}) {
    const std::string message = message_of([&] { Lock::take(folder.at("run"), kRunKey, call); });
    for (const char* word : {"without working locks", "--no-lock", "run"})
      EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(folder.at("run")));
  }
}

}  // namespace
}  // namespace pleat::run
