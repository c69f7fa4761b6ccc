// Starts the ranks of a run: alone, as threads of this process, or as one of the processes a launcher
// started.
#pragma once

#include <functional>
#include <string>

#include "config/config.h"
#include "runtime/crew.h"

namespace pleat::train {

// Called once per rank of this process, each on a thread of its own where there are several. `carrier`: what
// the ranks are and talk over, for people.
using RankMain =
    std::function<void(const config::Config& config, runtime::Crew& crew, const std::string& carrier)>;

// What keeps this many ranks from running, beyond what the model and the layout say: empty, or words for people.
// It depends on what carries the ranks, not on the configuration, so that it may be planned and simulated.
std::string carrier_fault(int64_t num_ranks);

// num_ranks > 0: that many threads. 0: the world of the launcher (comm/world.h), whose processes talk over MPI or TCP
// (comm/process/run_rank.h), and over NCCL where they compute on GPUs. The
// worker threads of device.threads are divided among the ranks of this machine. With device.kind = "cuda" the process
// takes the GPU of its local rank (comm/gpu_choice.h), and a launcher's rank binds its threads near it
// (device/near_cpus.h). Throws, before any rank
// starts work, when the layout does not fit the ranks, the launcher's world is not whole, or there is no GPU to run on.
// `inject`: faults for tests. `beside`: what processes must have been asked alike beside their configurations
// (same_configuration.h).
void launch(const config::Config& config, int num_ranks, const RankMain& rank_main,
            const comm::Inject& inject = {}, const std::string& beside = "");

}  // namespace pleat::train
