// Which GPU a process takes: that of its local rank.
#pragma once

#include "comm/communicator.h"
#include "comm/world.h"

namespace pleat::comm {

// Whether ranks may share a GPU: NCCL takes several processes on one from version 2.30 on, when the environment says
// NCCL_MULTI_RANK_GPU_ENABLE=1. For tests of layouts: each is slower than alone.
bool gpus_are_shared();
const char* how_to_share_gpus();  // words to put behind an error

// Of `num_gpus` that this process sees. Alone, or with ranks that are threads, the first; a launcher
// may also show each process its own GPU and no other. Throws when there is
// none for the local rank and they are not shared, saying what was got.
int gpu_of(const World& world, int num_gpus);

// Called by all ranks of a world of processes, each with the place of its GPU in its machine (device_bus). Throws, on
// all of them, when two ranks have one and GPUs are not shared.
void require_own_gpu(Endpoint& endpoint, const std::string& bus);

}  // namespace pleat::comm
