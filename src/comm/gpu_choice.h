// Which GPU a process takes: that of its local rank.
#pragma once

#include "comm/world.h"

namespace pleat::comm {

// Of `num_gpus` that this process sees. Alone, or with ranks that are threads, the first. Throws when there is
// none for the local rank, saying what was got.
int gpu_of(const World& world, int num_gpus);

}  // namespace pleat::comm
