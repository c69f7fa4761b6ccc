#include "comm/gpu_choice.h"

#include <cstdlib>
#include <cstring>

#include "base/counted.h"
#include "base/error.h"

namespace pleat::comm {

bool gpus_are_shared() {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

const char* how_to_share_gpus() {
  return "; to let ranks share a GPU, to try a layout and not to be fast, set NCCL_MULTI_RANK_GPU_ENABLE=1 "
         "(NCCL 2.30 "
         "or later)";
}

int gpu_of(const World& world, int num_gpus) {
  const int wanted = world.size == 1 ? 0 : world.local_rank;
  if (wanted < num_gpus) return wanted;
  if (num_gpus > 0 && gpus_are_shared()) return wanted % num_gpus;
  base::fail_with(
      base::ExitCode::Hardware,
      "rank {} of {} is local rank {} here ({}) and takes the GPU of that number, but this process sees {}; "
      "start no more ranks on a machine than it has GPUs, and let each see all of them "
      "(CUDA_VISIBLE_DEVICES){}",
      world.rank, world.size, world.local_rank, world.launcher, base::counted(num_gpus, "GPU"),
      how_to_share_gpus());
}

}  // namespace pleat::comm
