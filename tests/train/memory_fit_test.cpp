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

layout::Layout laid_out(int64_t world, int64_t pp = 1) { return layout::Layout({.world = world, .pp = pp}); }

TEST(MemoryFit, StagesThatDoNotFitAreNamed) {
  const cost::Machine h100 = cost::find_machine("h100");  // 79.1 GiB, eight to a host of 1900
  const MemoryFit good = memory_fit(h100, 8, laid_out(64, 2), {stage_of(60), stage_of(79)});
  EXPECT_TRUE(good.fits());
  EXPECT_EQ(good.text, "fits: stage 1 takes 79.0 GiB of 79.1 GiB");
  const MemoryFit bad = memory_fit(h100, 8, laid_out(48, 3), {stage_of(60), stage_of(91), stage_of(80)});
  EXPECT_FALSE(bad.fits());
  EXPECT_EQ(bad.device_over[0], 0);
  EXPECT_NEAR(double(bad.device_over[1]) / kGiB, 11.9, 0.01);
  for (const char* words :
       {"stage 1 by 11.9 GiB", "stage 2 by", "largest owners of stage 1: activations 91.0 GiB"})
    EXPECT_NE(bad.text.find(words), std::string::npos) << bad.text;
}

TEST(MemoryFit, RanksOfANodeShareTheMemoryOfTheirHost) {
  const cost::Machine h100 = cost::find_machine("h100");
  const MemoryFit host = memory_fit(h100, 8, laid_out(8), {stage_of(10, 300)});
  EXPECT_FALSE(host.fits()) << "eight ranks with 300 GiB of pinned memory each";
  EXPECT_EQ(host.host_over(), 500 * kGiB);
  EXPECT_NE(
      host.text.find("the 8 ranks of a node take 2.34 TiB of host memory (2.34 TiB pinned, 0 B staging), "
                     "500 GiB more"),
      std::string::npos)
      << host.text;
  EXPECT_TRUE(memory_fit(h100, 8, laid_out(1), {stage_of(10, 300)}).fits())
      << "one rank has the host for itself";
  // What one stage pins and another leaves adds up where both lie on one node, and does not where they do not.
  EXPECT_TRUE(memory_fit(h100, 8, laid_out(8, 2), {stage_of(10, 400), stage_of(10, 70)}).fits());
  EXPECT_FALSE(memory_fit(h100, 8, laid_out(16, 2), {stage_of(10, 400), stage_of(10, 70)}).fits());
}

TEST(MemoryFit, TheStagingOfAHostIsNamedAndCounts) {
  const cost::Machine h100 = cost::find_machine("h100");
  StageMemory stage = stage_of(10, 100);
  stage.staging_bytes = kGiB;
  const MemoryFit good = memory_fit(h100, 8, laid_out(1), {stage});
  EXPECT_TRUE(good.fits());
  EXPECT_EQ(good.host_bytes, 101 * kGiB);
  EXPECT_EQ(good.staging_bytes, kGiB);
  EXPECT_EQ(good.host_text,
            "a rank takes 101 GiB of 1.86 TiB of host memory: 100 GiB pinned, 1.00 GiB staging");
  stage.host_bytes = 239 * kGiB;
  const MemoryFit bad = memory_fit(h100, 8, laid_out(8), {stage});
  EXPECT_EQ(bad.host_over(), 20 * kGiB);
  EXPECT_NE(bad.text.find("(1.87 TiB pinned, 8.00 GiB staging), 20.0 GiB more"), std::string::npos)
      << bad.text;
  // The host reaches all memory of a CPU.
  EXPECT_EQ(memory_fit(cost::find_machine("cpu"), 8, laid_out(1), {stage_of(1)}).host_text, "");
}

TEST(MemoryFit, RanksOfACpuShareItsMemory) {
  const cost::Machine cpu = cost::find_machine("cpu");  // 24 GiB
  const MemoryFit two = memory_fit(cpu, 1024, laid_out(2), {stage_of(12)});
  EXPECT_TRUE(two.fits());
  EXPECT_EQ(two.text, "fits: the 2 ranks of a node take 24.0 GiB of 24.0 GiB");
  EXPECT_FALSE(memory_fit(cpu, 1024, laid_out(4), {stage_of(12)}).fits());
  // Not an equal part for each: together they fit.
  EXPECT_TRUE(memory_fit(cpu, 1024, laid_out(2, 2), {stage_of(20), stage_of(3)}).fits());
}

TEST(MemoryFit, BothProgramsOfAStepThatIsRunAgainHaveRoom) {
  const StageMemory both = larger(stage_of(60, 1), stage_of(40, 5));
  EXPECT_EQ(both.device.arena_bytes, 60 * kGiB);
  EXPECT_EQ(both.host_bytes, 5 * kGiB);
  EXPECT_EQ(both.at_peak[size_t(program::Owner::Activations)], 60 * kGiB);
}

}  // namespace
}  // namespace pleat::train
