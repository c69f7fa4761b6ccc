// What a step takes on a GPU: its arena, and what CUDA takes for itself.
#include "interpret/run/device_memory.h"

#include <gtest/gtest.h>

#include "device/cuda/cuda.h"

namespace pleat::interpret {
namespace {

TEST(DeviceMemory, IsTheArenaAndCudasOwn) {
  Plan made;
  made.arena_bytes = 1000;
  const DeviceMemory memory = device_memory(made);
  EXPECT_GT(memory.context_bytes, 0);
  EXPECT_EQ(memory.total(), 1000 + memory.context_bytes);
  EXPECT_EQ(memory.context_measured, device::cuda::num_devices() > 0);
  EXPECT_NE(describe(memory).find(memory.context_measured ? "measured" : "no GPU here"), std::string::npos);
}

}  // namespace
}  // namespace pleat::interpret
