// One trainer per run folder: who comes second is told who is there; a killed holder leaves nothing in the
// way; a file system that cannot lock is named.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>

#include <cerrno>

#include "cli/process.h"
#include "run/lock.h"

namespace pleat::run {
namespace {

using testing::TempFolder;

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(RunLock, ASecondTrainerIsToldWhoIsThere) {
  const TempFolder folder;
  const std::string run = folder.at("runs/a");
  {
    Lock first = Lock::take(run);
    EXPECT_NE(refusal([&] { Lock::take(run); }).find("just starting"), std::string::npos);
    first.sign();
    const std::string message = refusal([&] { Lock::take(run); });
    char host[256] = {};
    ::gethostname(host, sizeof host - 1);
    for (const std::string& word :
         {run, std::string(host), fmt::format("pid {}", ::getpid()), std::string("since 20")})
      EXPECT_NE(message.find(word), std::string::npos) << word << "\n" << message;
  }
  Lock::take(run).sign();
}

TEST(RunLock, AKilledHolderLeavesNothingInTheWay) {
  const TempFolder folder;
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
  EXPECT_NE(refusal([&] { Lock::take(folder.path()); }).find(fmt::format("pid {}", child)),
            std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  Lock again = Lock::take(folder.path());
  // What the killed one wrote still stands there; nobody is told that it is at work.
  EXPECT_NE(refusal([&] { Lock::take(folder.path()); }).find("just starting"), std::string::npos);
  ::close(ready[0]), ::close(ready[1]);
}

TEST(RunLock, ALockThatWasNeverSignedLeavesTheFolderAsItWas) {
  const TempFolder folder;
  { const Lock lock = Lock::take(folder.at("new")); }
  EXPECT_FALSE(std::filesystem::exists(folder.at("new")));
  { Lock::take(folder.at("old")).sign(); }
  const std::string before = testing::read_text(folder.at("old/LOCK"));
  { const Lock lock = Lock::take(folder.at("old")); }
  EXPECT_EQ(testing::read_text(folder.at("old/LOCK")), before);
}

TEST(RunLock, AFileSystemWithoutWorkingLocksIsNamed) {
  const TempFolder folder;
  const FlockCall refuses = [](int, int) {
    errno = ENOLCK;
    return -1;
  };
  const FlockCall agrees = [](int, int) { return 0; };
  for (const FlockCall call : {refuses, agrees}) {
    const std::string message = refusal([&] { Lock::take(folder.at("run"), call); });
    for (const char* word : {"without working locks", "--no-lock", "run"})
      EXPECT_NE(message.find(word), std::string::npos) << message;
    EXPECT_FALSE(std::filesystem::exists(folder.at("run")));
  }
}

}  // namespace
}  // namespace pleat::run
