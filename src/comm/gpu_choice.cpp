#include "comm/gpu_choice.h"

#include "base/counted.h"
#include "base/error.h"

namespace pleat::comm {

int gpu_of(const World& world, int num_gpus) {
  const int wanted = world.size == 1 ? 0 : world.local_rank;
  if (wanted < num_gpus) return wanted;
  base::fail_with(
      base::ExitCode::Hardware,
      "rank {} of {} is local rank {} here ({}) and takes the GPU of that number, but this process sees {}; "
      "start no more ranks on a machine than it has GPUs, and let each see all of them "
      "(CUDA_VISIBLE_DEVICES)",
      world.rank, world.size, world.local_rank, world.launcher, base::counted(num_gpus, "GPU"));
}

}  // namespace pleat::comm
