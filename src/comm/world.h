// Who this process is among the processes of a run, as its launcher says.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pleat::comm {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine
  std::string launcher = "none";       // "OpenMPI", "MVAPICH", "Hydra", "Slurm", "torchrun-style variables"
};

// The value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;

// Reads the variables of OpenMPI (OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE), MVAPICH (MV2_COMM_WORLD_...),
// Hydra, the launcher of MPICH and Intel MPI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS), Slurm
// (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID) and torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE).
// None set: a world of one. Throws base::Error, naming the variables and their values, when a rank or a size
// stands alone, a value is no number or out of range, or two launchers disagree. Slurm's variables of a job
// that was not started by srun (an sbatch script: one task of a larger allocation) give way to another
// launcher's.
World read_world(const Environment& environment);

// The variables read_world reads of launchers that are not torchrun's way: who starts ranks that way takes them out.
std::vector<std::string> variables_of_other_launchers();
World read_world();  // of this process

}  // namespace pleat::comm
