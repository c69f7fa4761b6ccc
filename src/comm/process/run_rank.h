// A process that a launcher started as one of several ranks joins the others.
#pragma once

#include <functional>

#include "comm/communicator.h"
#include "comm/options.h"
#include "comm/world.h"

namespace pleat::comm {

// What the ranks of such a world talk over: MPI where an MPI launcher started them, TCP otherwise. Throws where this
// program cannot.
enum class Carrier : uint8_t { Mpi, Tcp };
Carrier carrier_of(const World& world);
const char* name_of(Carrier carrier);  // "MPI"

// Calls fn on the calling thread, with this rank's door to the others and the number of ranks on this machine. Once per
// process (mpi/mpi_world.h, tcp/tcp_world.h).
void run_process_rank(const World& world, const Options& options,
                      const std::function<void(Endpoint& endpoint, int num_here)>& fn);

}  // namespace pleat::comm
