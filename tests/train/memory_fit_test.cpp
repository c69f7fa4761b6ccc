// Whether a step fits a machine: by stage, with the host's memory, and with who takes most.
#include "train/memory_fit.h"

#include <gtest/gtest.h>

#include "cost/machine_file.h"

namespace pleat::train {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

StageMemory stage_of(int64_t device_gib, int64_t host_gib = 0) {
  StageMemory s;
  s.device.arena_bytes = device_gib * kGiB;
  s.host_bytes = host_gib * kGiB;
  s.at_peak[size_t(program::Owner::Activations)] = device_gib * kGiB;
  return s;
}

TEST(MemoryFit, StagesThatDoNotFitAreNamed) {
  const cost::Machine h100 = cost::find_machine("h100");  // 79.1 GiB, eight to a host of 1900
  const MemoryFit good = memory_fit(h100, 8, 64, {stage_of(60), stage_of(79)});
  EXPECT_TRUE(good.fits());
  EXPECT_EQ(good.text, "fits: stage 1 takes 79.0 GiB of 79.1 GiB");
  const MemoryFit bad = memory_fit(h100, 8, 64, {stage_of(60), stage_of(91), stage_of(80)});
  EXPECT_FALSE(bad.fits());
  EXPECT_EQ(bad.device_over[0], 0);
  EXPECT_NEAR(double(bad.device_over[1]) / kGiB, 11.9, 0.01);
  for (const char* words :
       {"stage 1 by 11.9 GiB", "stage 2 by", "largest owners of stage 1: activations 91.0 GiB"})
    EXPECT_NE(bad.text.find(words), std::string::npos) << bad.text;
  const MemoryFit host = memory_fit(h100, 8, 8, {stage_of(10, 300)});
  EXPECT_FALSE(host.fits()) << "eight ranks with 300 GiB of pinned memory each";
  EXPECT_NE(host.text.find("a rank by 62.5 GiB of its host"), std::string::npos) << host.text;
  EXPECT_TRUE(memory_fit(h100, 8, 1, {stage_of(10, 300)}).fits()) << "one rank has the host for itself";
}

TEST(MemoryFit, RanksOfACpuShareItsMemory) {
  const cost::Machine cpu = cost::find_machine("cpu");  // 24 GiB
  EXPECT_TRUE(memory_fit(cpu, 1024, 2, {stage_of(12)}).fits());
  EXPECT_FALSE(memory_fit(cpu, 1024, 4, {stage_of(12)}).fits());
}

}  // namespace
}  // namespace pleat::train
