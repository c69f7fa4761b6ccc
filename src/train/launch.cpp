#include "train/launch.h"

#include "base/error.h"
#include "comm/gpu_choice.h"
#include "comm/local/local_world.h"
#include "comm/process/run_rank.h"
#include "comm/world.h"
#include "config/resolve.h"
#include "device/cuda/chosen.h"
#include "device/cuda/cuda.h"
#include "device/gpu_fault.h"
#include "device/near_cpus.h"
#include "interpret/run/collectives.h"
#include "layout/nodes.h"
#include "runtime/require_trainable.h"
#include "schedule/pass/offload.h"
#include "schedule/run_together.h"
#include "train/same_configuration.h"
#include "train/stop_signal.h"

namespace pleat::train {
namespace {

comm::Options comm_options(const config::Config& c, const comm::Inject& inject) {
  comm::Options o;
  o.timeout_seconds = c.comm.timeout;
  o.check = c.comm.check;
  o.mpi_native = c.comm.mpi_native;
  o.called_off = [] { return StopSignal::asked(); };
  o.inject = inject;
  return o;
}

// Enqueued exchanges of a rank run one after the other, and messages have no names: the order of the pipeline must allow
// both.
void require_one_chain(const config::Config& resolved, int num_ranks) {
  if (resolved.parallel.pp == 1) return;
  const schedule::RankPrograms ranks = schedule::build_ranks(resolved, num_ranks);
  schedule::require_runs_together(interpret::network_of_roles(ranks.programs),
                                  schedule::meeting_of(resolved, num_ranks));
}

// Where it is declared how many ranks share a machine, they do.
void require_declared_nodes(const config::Config& config, const layout::StartedRank& started) {
  const std::string fault = layout::node_fault(config.parallel.ranks_per_node, started);
  if (!fault.empty()) base::fail("{}", fault);
}

// Throws where there is none to run on: now, and not when data is prepared and the run has its folder.
void take_gpu(const comm::World& world) {
  if (const int num_gpus = device::cuda::num_devices(); num_gpus > 0)
    device::cuda::choose_device(comm::gpu_of(world, num_gpus));
  device::cuda::enter_device();
  // Threads of the driver are there already; the others are started from bound ones.
  if (world.size > 1) device::bind_near_gpu(device::cuda::device_bus());
  if (const std::string fault = device::gpu_fault(device::cuda::facts()); !fault.empty())
    base::fail_with(base::ExitCode::Hardware, "{}", fault);
}

}  // namespace

std::string carrier_fault(int64_t num_ranks) {
  if (num_ranks > interpret::kMaxGroupRanks)
    return fmt::format("{} ranks: up to {} can run together", num_ranks, interpret::kMaxGroupRanks);
  return "";
}

void launch(const config::Config& config, int num_ranks, const RankMain& rank_main,
            const comm::Inject& inject, const std::string& beside) {
  const config::Config resolved = config::resolve(config);
  const comm::World world = comm::read_world();
  if (num_ranks > 0 && world.size > 1)
    base::fail("--ranks {} asks for threads, but {} started this process as rank {} of {}; leave one out",
               num_ranks, world.launcher, world.rank, world.size);
  const int size = num_ranks > 0 ? num_ranks : world.size;
  runtime::rank_setup(resolved, size, num_ranks > 0 ? 0 : world.rank);  // throws what does not fit
  if (const std::string fault = carrier_fault(size); !fault.empty()) base::fail("{}", fault);
  if (config.device.kind == "cuda" && num_ranks > comm::kMaxGpuRanks)
    base::fail(
        "--ranks {} with device.kind = \"cuda\": threads share one GPU, up to {} of them; processes have one "
        "each "
        "(pleat launch --gpus N)",
        num_ranks, comm::kMaxGpuRanks);
  const bool processes = num_ranks == 0 && size > 1;
  if (config.comm.mpi_native && !(processes && comm::carrier_of(world) == comm::Carrier::Mpi))
    base::fail("comm.mpi_native = true has no effect here: the ranks {} and do not talk over MPI; remove it",
               processes ? "are processes over TCP" : "are threads");
  if (num_ranks > 1 && config.device.kind == "cuda" && !config.device.graph)
    base::fail(
        "device.graph = false has no effect here: threads that share a GPU run stage by stage; remove it");
  if (num_ranks > 1) require_declared_nodes(config, {0, size, 0, size});
  runtime::require_trainable(config);
  if (size > 1) schedule::require_offloaded_by_ranks(resolved);  // once, and not on every rank
  if (config.device.kind == "cuda") take_gpu(world);
  if (size == 1) {
    runtime::Crew alone(resolved);
    rank_main(config, alone, "alone");
    return;
  }
  if (num_ranks > 0) {
    comm::LocalWorld ranks(size, comm_options(config, inject));
    comm::run_ranks(ranks, [&](int rank) {
      const std::unique_ptr<comm::Endpoint> endpoint = ranks.endpoint(rank);
      runtime::Crew crew(resolved, *endpoint, static_cast<int>(config::threads_of_rank(resolved, size)));
      rank_main(config, crew, "threads of one process");
    });
    return;
  }
  if (config.device.kind == "cuda") require_one_chain(resolved, size);
  comm::run_process_rank(world, comm_options(config, inject), [&](comm::Endpoint& endpoint, int num_here) {
    require_same_configuration(endpoint, config, beside);
    require_declared_nodes(config, {world.rank, world.size, world.local_rank, num_here});
    if (config.device.kind == "cuda") comm::require_own_gpu(endpoint, device::cuda::device_bus());
    runtime::Crew crew(resolved, endpoint, static_cast<int>(config::threads_of_rank(resolved, num_here)));
    const char* carrier = config.device.kind == "cuda" ? "NCCL" : name_of(comm::carrier_of(world));
    rank_main(config, crew, fmt::format("processes over {}, started by {}", carrier, world.launcher));
    // A group over NCCL ends at once: nobody may still be in a call of it.
    crew.wait_for_all("end");
  });
}

}  // namespace pleat::train
