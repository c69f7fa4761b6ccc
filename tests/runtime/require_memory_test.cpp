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
  const std::string said = pleat::testing::message_of(
      base::ExitCode::Hardware, [&] { require_memory(plan, needed, int64_t{38} << 30, "the GPU"); });
  for (const char* words : {"a rank needs 50.0 GiB", "the GPU has 38.0 GiB free", "12.0 GiB too little",
                            "activations 40.0 GiB, weights 10.0 GiB", "Nothing was allocated"})
    EXPECT_NE(said.find(words), std::string::npos) << words << "\n" << said;
  EXPECT_NO_THROW(require_memory(plan, needed, needed, "the GPU"));
  EXPECT_NO_THROW(require_memory(plan, needed, -1, "the GPU")) << "nobody knows";
}

}  // namespace
}  // namespace pleat::runtime
