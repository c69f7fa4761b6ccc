#include "comm/process/run_rank.h"

#include "base/error.h"
#include "comm/door.h"
#include "comm/mpi/mpi_world.h"
#include "comm/tcp/tcp_world.h"

namespace pleat::comm {

Carrier carrier_of(const World& world) {
  if (world.launcher == "Slurm" || world.launcher == "torchrun-style variables") return Carrier::Tcp;
  if (!mpi_is_built_in())
    base::fail(
        "{} says this is rank {} of {}, but this program was built without MPI; start it with srun, 'pleat "
        "launch' or "
        "torchrun-style variables, whose ranks talk over TCP",
        world.launcher, world.rank, world.size);
  return Carrier::Mpi;
}

const char* name_of(Carrier carrier) { return carrier == Carrier::Mpi ? "MPI" : "TCP"; }

void run_process_rank(const World& world, const Options& options,
                      const std::function<void(Endpoint& endpoint, int num_here)>& fn) {
  if (carrier_of(world) == Carrier::Mpi)
    return run_mpi_rank(options, [&](Endpoint& endpoint) { fn(endpoint, world.local_size); });
  run_tcp_rank(read_door(world), options, fn);
}

}  // namespace pleat::comm
