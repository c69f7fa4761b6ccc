// Stands in where no MPI library was found when the project was configured.
#include "base/error.h"
#include "comm/mpi/mpi_world.h"

namespace pleat::comm {

bool mpi_is_built_in() { return false; }
std::string mpi_description() { return "not built in"; }

void run_mpi_rank(const Options&, const std::function<void(Endpoint&)>&) {
  base::fail("MPI is not built in: install libopenmpi-dev and configure again, or run thread ranks");
}

}  // namespace pleat::comm
