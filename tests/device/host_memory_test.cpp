// How much memory a run may take: read off the system's words.
#include "device/cpu/host_memory.h"

#include <gtest/gtest.h>

namespace pleat::device {
namespace {

TEST(HostMemory, SwapCounts) {
  EXPECT_EQ(available_of("MemTotal:  100 kB\nMemAvailable:     7 kB\nSwapTotal: 9 kB\nSwapFree:   3 kB\n"),
            10 * 1024);
  EXPECT_EQ(available_of("MemAvailable: 7 kB\n"), 7 * 1024);
  EXPECT_EQ(available_of("MemTotal: 7 kB\n"), -1) << "an old system does not say";
  EXPECT_EQ(available_of(""), -1);
  EXPECT_EQ(total_of("MemTotal:  100 kB\nSwapTotal: 9 kB\n"), 109 * 1024);
}

TEST(HostMemory, OfThisMachineIsSomethingAndHasAReason) {
  const AvailableMemory now = available_host_memory();
  EXPECT_GT(now.bytes, 1 << 20);
  EXPECT_FALSE(now.limit.empty());
}

}  // namespace
}  // namespace pleat::device
