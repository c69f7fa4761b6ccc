#include "comm/world.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/terminal_text.h"

namespace pleat::comm {
namespace {

struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
};

constexpr char kTorchrun[] = "torchrun-style variables";

constexpr Names kLaunchers[] = {
    {"OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"Hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
};

std::optional<int> number(const Environment& environment, const char* name, int lowest) {
  const char* text = name == nullptr ? nullptr : environment(name);
  if (text == nullptr) return std::nullopt;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  if (error != std::errc() || stop != end || value < lowest)
    base::fail("{}='{}' in the environment; needed a whole number, {} or more{}", name,
               base::terminal_text(text), lowest, *text == 0 ? ", or the variable unset" : "");
  return value;
}

std::optional<World> read(const Environment& environment, const Names& names) {
  const auto rank = number(environment, names.rank, 0), size = number(environment, names.size, 1);
  const auto local_rank = number(environment, names.local_rank, 0),
             local_size = number(environment, names.local_size, 1);
  // Other launchers speak PMI too, and name the local rank their own way.
  if (!local_rank && std::strcmp(names.launcher, "Hydra") == 0) return std::nullopt;
  // An allocation sets the size for scripts that are no task of any step.
  if (!rank && std::strcmp(names.launcher, "Slurm") == 0) return std::nullopt;
  if (!rank && !size && !local_rank && !local_size) return std::nullopt;
  if (!rank || !size) {
    base::fail("the environment says {} but not {} (launcher: {}); set both or neither",
               rank         ? fmt::format("{}={}", names.rank, *rank)
               : size       ? fmt::format("{}={}", names.size, *size)
               : local_rank ? fmt::format("{}={}", names.local_rank, *local_rank)
                            : fmt::format("{}={}", names.local_size, *local_size),
               rank ? names.size : names.rank, names.launcher);
  }
  if (*rank >= *size)
    base::fail("{}={} with {}={} in the environment; needed a rank from 0 to {}", names.rank, *rank,
               names.size, *size, *size - 1);
  World world;
  world.rank = *rank;
  world.size = *size;
  world.local_rank = local_rank.value_or(0);
  world.local_size = local_size.value_or(*size);
  world.launcher = names.launcher;
  if (!local_rank && *size > 1)
    base::fail(
        "the environment says {}={} {}={} but {} is not set (launcher: {}); needed the number of this rank "
        "among "
        "those of its machine, from 0",
        names.rank, *rank, names.size, *size, names.local_rank, names.launcher);
  if (world.local_size > world.size)
    base::fail("{}={} with {}={} in the environment; needed a number of ranks of this machine from 1 to {}",
               names.local_size, world.local_size, names.size, world.size, world.size);
  if (world.local_rank >= world.local_size)
    base::fail("{}={} with {}={} in the environment; needed a rank of this machine from 0 to {}",
               names.local_rank, world.local_rank, local_size ? names.local_size : names.size,
               world.local_size, world.local_size - 1);
  if (world.local_rank > world.rank)
    base::fail("{}={} with {}={} in the environment; needed a rank of this machine from 0 to {}",
               names.local_rank, world.local_rank, names.rank, world.rank, world.rank);
  return world;
}

}  // namespace

World read_world(const Environment& environment) {
  std::optional<World> found;
  const Names* source = nullptr;
  for (const Names& names : kLaunchers) {
    const std::optional<World> world = read(environment, names);
    if (!world) continue;
    // mpirun or torchrun inside a batch script: the script itself is task 0 of 1.
    const bool batch_script = found && std::strcmp(names.launcher, "Slurm") == 0 && world->rank == 0 &&
                              environment("SLURM_STEP_ID") == nullptr;
    if (batch_script) continue;
    if (found && (found->rank != world->rank || found->size != world->size))
      base::fail("two launchers disagree: {}={} {}={}, but {}={} {}={}; unset the variables of one",
                 source->rank, found->rank, source->size, found->size, names.rank, world->rank, names.size,
                 world->size);
    if (!found) {
      found = world;
      source = &names;
    }
  }
  return found.value_or(World{});
}

std::vector<std::string> variables_of_other_launchers() {
  std::vector<std::string> out;
  for (const Names& names : kLaunchers)
    for (const char* name : {names.rank, names.size, names.local_rank, names.local_size})
      if (name != nullptr && names.launcher != kTorchrun) out.emplace_back(name);
  return out;
}

World read_world() {
  return read_world([](const char* name) { return std::getenv(name); });
}

}  // namespace pleat::comm
