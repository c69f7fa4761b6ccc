// A step on the GPU allocates nothing of 4 KiB or more once its first ones have run: no memory of the GPU, no pinned
// memory, nothing on the heap. What the driver and its libraries take on the host for themselves is recorded by name.
#include "base/alloc_watch.h"
#include "cuda/cuda_support.h"
#include "runtime/programs.h"
#include "train/bench_step.h"

namespace pleat::train {
namespace {

using kernels::testing::no_gpu;

config::Config allocation_model(const char* dtype, bool graph) {
  config::Config c;
  c.model.vocab_size = 2000;
  c.model.hidden_size = 128;
  c.model.num_layers = 2;
  c.model.num_heads = 4;
  c.model.num_kv_heads = 2;
  c.model.head_dim = 32;
  c.model.qk_norm = true;
  c.model.dtype = dtype;
  c.moe.num_experts = 8;
  c.moe.top_k = 2;
  c.moe.ffn_hidden_size = 64;
  c.moe.shared_ffn_hidden_size = 64;
  c.moe.load_balancing = {"aux", "seq_aux"};
  c.moe.aux_coef = {0.01, 0.01};
  c.train.seq_len = 64;
  c.train.micro_batch = 2;
  c.train.num_microbatches = 2;
  c.optimizer.schedule = "constant";
  c.device.kind = "cuda";
  c.device.graph = graph;
  c.device.threads = 2;
  config::validate(c);
  return config::resolve(c);
}

TEST(CudaAllocation, AStepAllocatesNothingLarge) {
  PLEAT_NEEDS_GPU();
  for (const char* dtype : {"bfloat16", "float32"})
    for (const bool graph : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, {}", dtype, graph ? "as a graph" : "stage by stage"));
      const config::Config c = allocation_model(dtype, graph);
      runtime::ProgramChoice choice;
      choice.evaluate = false;
      runtime::Programs programs(c, choice);
      programs.initialize();
      int step = 0;
      for (; step < 3; ++step) {
        write_random_batch(programs.train(), c, step);
        programs.train().run();
      }
      const int64_t free_before = device::cuda::facts().free_bytes;
      base::AllocationCount seen;
      for (; step < 6; ++step) {
        write_random_batch(programs.train(), c, step);
        base::start_allocation_watch();
        programs.train().run();
        seen += base::stop_allocation_watch();
      }
      EXPECT_EQ(device::cuda::facts().free_bytes, free_before) << "the GPU's memory, by whomever";
      EXPECT_EQ(seen.large, 0) << "largest " << seen.largest;
      ::testing::Test::RecordProperty(graph ? "driver_graph" : "driver_stages",
                                      fmt::format("{}: {}", seen.driver, seen.drivers));
    }
}

TEST(CudaAllocation, TheWatchSeesMemoryOfTheGpuAndPinnedMemory) {
  PLEAT_NEEDS_GPU();
  base::start_allocation_watch();
  { device::cuda::Memory one(8192); }
  { device::cuda::Pinned two(16384); }
  const base::AllocationCount seen = base::stop_allocation_watch();
  EXPECT_GE(seen.large, 2);
  EXPECT_GE(seen.largest, 16384);
}

TEST(CudaAllocation, AStageWithoutItsScratchIsRefused) {
  PLEAT_NEEDS_GPU();
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  choice.disabled_passes = {"scratch"};
  try {
    runtime::Programs programs(allocation_model("bfloat16", true), choice);
    ADD_FAILURE() << "not refused";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("got 0 bytes of scratch, needed"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace pleat::train
