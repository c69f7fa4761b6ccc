// A step that cannot fit is refused before anything is allocated, with bytes and owners.
#include "runtime/require_memory.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace pleat::runtime {
namespace {

TEST(RequireMemory, WhatCannotFitIsRefusedWithItsOwners) {
  interpret::Plan plan;
  plan.at_peak[size_t(program::Owner::Activations)] = int64_t{40} << 30;
  plan.at_peak[size_t(program::Owner::Weights)] = int64_t{10} << 30;
  const int64_t needed = int64_t{50} << 30;
  const auto said = [&](const MemoryRoom& room, int64_t alike) {
    return pleat::testing::message_of([&] { require_memory(plan, needed, room, alike); });
  };
  const int64_t few = int64_t{38} << 30, many = int64_t{120} << 30;
  for (const char* words :
       {"a rank needs 50.0 GiB", "the GPU has 38.0 GiB free", "12.0 GiB too little",
        "activations 40.0 GiB, weights 10.0 GiB", "Nothing was allocated", "recompute.modules"})
    EXPECT_NE(said({"the GPU", few, many}, 1).find(words), std::string::npos) << words;
  EXPECT_EQ(said({"the GPU", needed, many}, 2), "");
  EXPECT_EQ(said({"the GPU", -1, -1}, 8), "") << "nobody knows";
  // Threads of one process: all of them together.
  EXPECT_NE(said({"the GPU", many, many}, 3)
                .find("3 ranks of this process need 50.0 GiB each, the GPU is 120 GiB in all"),
            std::string::npos);
  // What the bytes are, where no owner of the plan says it.
  EXPECT_NE(testing::message_of([&] {
              require_memory(plan, needed, {"the machine's memory", few, many}, 1,
                             host_parts(int64_t{30} << 30, int64_t{20} << 30));
            }).find("a rank needs 50.0 GiB (30.0 GiB pinned, 20.0 GiB staging), the machine's"),
            std::string::npos);
  plan.at_peak[size_t(program::Owner::Activations)] = 0;
  EXPECT_EQ(said({"the GPU", few, many}, 1).find("recompute"), std::string::npos)
      << "there is nothing to recompute";
}

}  // namespace
}  // namespace pleat::runtime
