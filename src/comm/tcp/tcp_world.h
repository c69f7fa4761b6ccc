// Ranks that are processes joined by TCP: nothing needs to be installed, and any launcher will do that gives each
// process a rank, a size and the place of rank 0 (world.h).
//
// The reductions are those of threads and MPI (messages/message_group.h), with the same bits. Flight recorders of one
// machine lie in memory its ranks share; ranks of other machines send theirs now and then as signs of life.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "comm/options.h"
#include "comm/tcp/rendezvous.h"

namespace pleat::comm {

// Processes of a cluster do not start all at once.
inline constexpr double kShortestStart = 60;

// Meets the other ranks, calls fn on the calling thread, leaves. `num_here`: ranks on this machine. Errors as
// run_mpi_rank (mpi/mpi_world.h): when fn throws, or a rank is gone or does not come, every other rank ends with code
// 75 and says where it waited. Ranks that do not come, or hang while they do, are awaited for the time-out of `options`,
// but at least `shortest_start` seconds.
void run_tcp_rank(const tcp::Door& door, const Options& options,
                  const std::function<void(Endpoint& endpoint, int num_here)>& fn,
                  double shortest_start = kShortestStart);

}  // namespace pleat::comm
