// Where the ranks of a run meet over TCP, as their launcher says.
#pragma once

#include "comm/tcp/rendezvous.h"
#include "comm/world.h"

namespace pleat::comm {

// A descriptor rank 0 inherits from `pleat launch`: it listens already, so that no other job can take the port.
inline constexpr const char *kListeningVariable = "PLEAT_LISTENING", *kTokenVariable = "PLEAT_JOB_TOKEN";

// MASTER_ADDR and MASTER_PORT, where they are set. Under Slurm they need not be: the first machine of the job step's list
// (SLURM_STEP_NODELIST), and a port that follows from job and step. The token is PLEAT_JOB_TOKEN, or else what names the
// job: TORCHELASTIC_RUN_ID, SLURM_JOB_ID with SLURM_STEP_ID. Throws base::Error, naming the variables, when a place is
// missing or no port, or the descriptor does not listen.
tcp::Door read_door(const World& world, const Environment& environment);
tcp::Door read_door(const World& world);  // of this process

// "gpu[01-04,7],login" -> "gpu01".
std::string first_host(const std::string& node_list);

}  // namespace pleat::comm
