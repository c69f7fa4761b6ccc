// Processors near a GPU: the lists of Linux, and when threads are bound to them.
#include "device/near_cpus.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/error.h"
#include "support/files.h"

namespace pleat::device {
namespace {

TEST(NearCpus, ListsAreReadAndWritten) {
  EXPECT_EQ(parse_cpu_list(""), Cpus{});
  EXPECT_EQ(parse_cpu_list("3"), Cpus{3});
  EXPECT_EQ(parse_cpu_list("0-3,8"), (Cpus{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("8,0-1,1-2"), (Cpus{0, 1, 2, 8}));
  for (const char* text : {"", "3", "0-3,8", "0,2,4-5"}) EXPECT_EQ(cpu_list(parse_cpu_list(text)), text);
}

TEST(NearCpus, OtherTextsAreRefused) {
  for (const char* text : {"a", "1-", "-1", "3-1", "1,,2", "1,", "0-99999", "0x3", " 1", "0-1-2"})
    EXPECT_THROW(parse_cpu_list(text), base::Error) << "'" << text << "'";
}

const Cpus kMachine = parse_cpu_list("0-15"), kNear = parse_cpu_list("8-15");
constexpr const char* kBus = "0000:1b:00.0";

TEST(NearCpus, AFreeProcessIsBound) {
  const NearCpus chosen = choose_near_cpus(kBus, kMachine, kMachine, kNear);
  EXPECT_EQ(chosen.bind_to, kNear);
  EXPECT_EQ(chosen.remark, "threads are bound to processors 8-15, near 0000:1b:00.0");
}

// Slurm's --cpus-per-task, taskset or a container has the last word, also when it chose the far side.
TEST(NearCpus, AProcessThatWasPutSomewhereStaysThere) {
  const NearCpus half = choose_near_cpus(kBus, parse_cpu_list("6-9"), kMachine, kNear);
  EXPECT_EQ(half.bind_to, Cpus{});
  EXPECT_EQ(half.remark,
            "threads keep processors 6-9, where the process was put; 2 of them near 0000:1b:00.0 (8-15)");
  const NearCpus far = choose_near_cpus(kBus, parse_cpu_list("0-3"), kMachine, kNear);
  EXPECT_EQ(far.bind_to, Cpus{});
  EXPECT_NE(far.remark.find("none of them near"), std::string::npos) << far.remark;
}

TEST(NearCpus, WhatTheSystemDoesNotTellBindsNobody) {
  EXPECT_EQ(choose_near_cpus(kBus, kMachine, kMachine, std::nullopt).bind_to, Cpus{});
  EXPECT_EQ(choose_near_cpus(kBus, kMachine, kMachine, Cpus{}).bind_to, Cpus{});
  const NearCpus all = choose_near_cpus(kBus, kMachine, kMachine, kMachine);
  EXPECT_EQ(all.bind_to, Cpus{});
  EXPECT_NE(all.remark.find("all processors are near"), std::string::npos) << all.remark;
  const NearCpus offline = choose_near_cpus(kBus, kMachine, kMachine, parse_cpu_list("32-47"));
  EXPECT_EQ(offline.bind_to, Cpus{});
  EXPECT_NE(offline.remark.find("none of the processors near"), std::string::npos) << offline.remark;
}

TEST(NearCpus, FilesOfLinuxAreFound) {
  const pleat::testing::TemporaryFolder folder;
  std::filesystem::create_directories(folder.at("bus/pci/devices/0000:1b:00.0"));
  std::filesystem::create_directories(folder.at("devices/system/cpu"));
  EXPECT_EQ(read_near_cpus("0000:1B:00.0", folder.path()), std::nullopt);
  EXPECT_EQ(read_online_cpus(folder.path()), Cpus{});
  pleat::testing::write_file(folder.at("bus/pci/devices/0000:1b:00.0/local_cpulist"), "0-1,4\n");
  pleat::testing::write_file(folder.at("devices/system/cpu/online"), "0-7\n");
  EXPECT_EQ(read_near_cpus("0000:1B:00.0", folder.path()), (Cpus{0, 1, 4}));
  EXPECT_EQ(read_online_cpus(folder.path()), parse_cpu_list("0-7"));
}

TEST(NearCpus, WhereThisThreadMayRunIsKnown) {
  const Cpus allowed = allowed_cpus();
  EXPECT_FALSE(allowed.empty());
  EXPECT_LE(allowed.size(), std::max<size_t>(1, read_online_cpus().size()));
}

}  // namespace
}  // namespace pleat::device
