// runtime::Planned memory is what a run touches: nothing more in the arena, nothing on the heap.
#include <gtest/gtest.h>

#include "base/alloc_watch.h"
#include "interpret/check/check.h"
#include "schedule/build.h"
#include "train/train_support.h"

namespace pleat::train::testing {
namespace {

// The end of what a step changed in an arena larger than the plan, relative to the plan's end.
int64_t overshoot(const program::Program& p, const interpret::Plan& plan, const config::Config& c,
                  const runtime::Programs& start) {
  device::Pool pool(2);
  device::Arena arena(plan.arena_bytes + (1 << 16));
  arena.fill_pattern();
  interpret::Executor executor(p, plan, {arena.data()}, pool);
  for (const checkpoint::TensorRef& t : start.tensors())
    std::memcpy(executor.data(t.name), t.bytes.host().data(), t.bytes.host().size());
  write_random_batch(executor, c, 1);
  executor.run();
  return arena.end_of_changes() - plan.arena_bytes;
}

}  // namespace

TEST(Memory, MeasuredPeakEqualsThePlanUpToAlignment) {
  for (const char* set : {"recompute.modules=[]", "recompute.modules=[\"layer\"]",
                          "recompute.modules=[\"activation\",\"norm\"]",
                          "optimizer.moment1_dtype=\"bfloat16\"", "optimizer.moment2_dtype=\"bfloat16\""}) {
    const config::Config c = small_config("", {"model.dtype=\"float32\"", set});
    runtime::Programs programs(c, train_only());
    programs.initialize();
    const int64_t over = overshoot(programs.train_plan().program, programs.train_plan().plan, c, programs);
    EXPECT_LE(over, 0) << set;
    EXPECT_GT(over, -interpret::kArenaAlignment) << set;
  }
}

TEST(Memory, AValueOneByteTooShortIsFound) {
  const config::Config c = small_config("", {"model.dtype=\"float32\""});
  runtime::Programs programs(c, train_only());
  programs.initialize();
  const program::Program& p = programs.train_plan().program;
  interpret::Plan plan = programs.train_plan().plan;
  // The value that ends last loses one byte: the arena ends inside it.
  int64_t end = 0;
  for (size_t i = 0; i < p.values.size(); ++i)
    if (plan.offset[i] >= 0) end = std::max(end, plan.offset[i] + program::num_bytes(p.values[i]));
  plan.arena_bytes = end - 1;
  EXPECT_FALSE(interpret::check_plan(p, plan).ok());
  EXPECT_GT(overshoot(p, plan, c, programs), 0);
}

// Products of a tiny model are small enough for kernels of BLAS that allocate.
TEST(Memory, AStepOfATinyModelAllocatesNothingLarge) {
  for (const char* dtype : {"float32", "float64"})
    for (const int hidden : {8, 24, 40}) {
      const config::Config c =
          small_config("", {fmt::format("model.dtype=\"{}\"", dtype), "model.vocab_size=700",
                            fmt::format("model.hidden_size={}", hidden)});
      runtime::Programs programs(c, train_only());
      programs.initialize();
      write_random_batch(programs.train(), c, 1);
      programs.train().run();
      write_random_batch(programs.train(), c, 2);
      base::start_allocation_watch();
      programs.train().run();
      const base::AllocationCount seen = base::stop_allocation_watch();
      EXPECT_EQ(seen.large, 0) << "hidden size " << hidden << ", largest " << seen.largest;
    }
}

TEST(Memory, AStepAllocatesNothingLarge) {
  const config::Config c =
      small_config("", {"model.dtype=\"float32\"", "model.vocab_size=2000", "model.hidden_size=64"});
  runtime::Programs programs(c, train_only());
  programs.initialize();
  write_random_batch(programs.train(), c, 1);
  programs.train().run();  // the first call of a thread may set up its BLAS buffers
  write_random_batch(programs.train(), c, 2);
  base::start_allocation_watch();
  programs.train().run();
  const base::AllocationCount seen = base::stop_allocation_watch();
  EXPECT_EQ(seen.large, 0) << "largest " << seen.largest;
  if (!seen.available) GTEST_SKIP() << "sanitizers bring their own malloc";
  // The watch itself must be able to see one.
  base::start_allocation_watch();
  std::vector<char> big(8192);
  big[0] = 1;
  asm volatile("" : : "r"(big.data()) : "memory");
  EXPECT_GE(base::stop_allocation_watch().large, 1);
}

}  // namespace pleat::train::testing
