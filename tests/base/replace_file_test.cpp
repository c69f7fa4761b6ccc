#include "base/replace_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "base/posix_vfs.h"
#include "support/files.h"

namespace pleat::base {
namespace {

using testing::read_file;
using testing::write_file;

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) out.insert(entry.path().filename());
  return out;
}

TEST(ReplaceFile, WritersAtTheSameTimeTookEachOthersTemporaryFile) {
  testing::TemporaryFolder folder;
  constexpr int kThreads = 6, kEach = 40;
  std::atomic<int> faults{0};
  {
    std::vector<std::jthread> writers;
    for (int t = 0; t < kThreads; ++t)
      writers.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) try {
            replace_file(folder.at("a"), std::string(1000, static_cast<char>('a' + t)));
          } catch (const Error&) {
            ++faults;
          }
      });
  }
  EXPECT_EQ(faults, 0);
  const std::string text = read_file(folder.at("a"));
  EXPECT_EQ(text, std::string(1000, text.empty() ? '?' : text[0]));
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"a"}));
}

TEST(ReplaceFile, WhatAKilledWriterLeftGoesAndWhatAnotherHoldsStays) {
  testing::TemporaryFolder folder;
  for (const char* name : {"a.tmp-1-0", "a.tmp-77-3", "a.tmp-mine", "a.tmp-1-", "b.tmp-1-0", "a.tmp"})
    write_file(folder.at(name), "left");
  PosixVfs vfs;
  const Lock held = vfs.try_lock(folder.at("a.tmp-77-3"), LockKind::Exclusive);
  ASSERT_EQ(held.outcome, Lock::Held);
  replace_file(folder.at("a"), "new");
  EXPECT_EQ(read_file(folder.at("a")), "new");
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"a", "a.tmp-77-3", "a.tmp-mine", "a.tmp-1-", "b.tmp-1-0", "a.tmp"}));
  ::close(held.file);
}

TEST(ReplaceFile, AFailureLeavesNothing) {
  testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("a/inside"));  // a file cannot take its name
  EXPECT_THROW(replace_file(folder.at("a"), "new"), VfsError);
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"a"}));
  EXPECT_THROW(replace_file(folder.at("none/a"), "new"), VfsError);
}

}  // namespace
}  // namespace pleat::base
