// Starts the ranks of a run as processes of this machine, watches over them, and starts them again.
#pragma once

#include <string>
#include <vector>

namespace pleat::comm {

struct LaunchOptions {
  int num_ranks = 1;
  int num_restarts =
      0;  // how often all are started again after a failure that asks for it (code 75, a signal)
  double grace_seconds = 20;  // for the others to end by themselves once one has failed
};

// Runs `command` once per rank, with torchrun's variables (world.h, door.h) in its environment: rank 0 meets the
// others on this machine's loopback address; variables of a launcher that started this process are taken out. SIGINT,
// SIGTERM and, unless it is ignored (nohup), SIGHUP are handed on to all of them. Returns when all
// have ended: 0, or the code of the first that failed (75 where a signal killed it), which is said on standard error.
// None outlives this process.
int launch_ranks(const std::vector<std::string>& command, const LaunchOptions& options);

}  // namespace pleat::comm
