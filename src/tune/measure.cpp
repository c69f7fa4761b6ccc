#include "tune/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "base/error.h"
#include "config/resolve.h"
#include "interpret/check/check.h"
#include "interpret/network/network.h"
#include "runtime/require_trainable.h"
#include "schedule/node_reach.h"
#include "schedule/run_together.h"

namespace pleat::tune {
namespace {

Measured measured(const config::Config& asked, int64_t num_ranks, const schedule::Ground& ground) {
  config::validate(asked);
  const config::Config config = schedule::placed_on(config::resolve(asked), ground.machine, num_ranks);
  const schedule::RankPrograms ranks = schedule::build_ranks(config, num_ranks);
  const interpret::Network network = interpret::network_of_roles(ranks.programs);
  schedule::require_runs_together(network, schedule::meeting_of(config, num_ranks));
  std::vector<train::StageMemory> memory;
  for (size_t i = 0; i < ranks.programs.size(); ++i) {
    const program::Order order(ranks.programs[i], *network.nodes[i].edges);
    const interpret::Plan plan = interpret::plan(ranks.programs[i], order);
    interpret::require_ok(interpret::check_plan(ranks.programs[i], plan, order),
                          fmt::format("plan of pipeline rank {}", i));
    memory.push_back(train::stage_memory(ground.machine.kind, ranks.mesh, ranks.programs[i], plan));
  }
  train::add_rerun(memory, config, ranks, num_ranks, ground.machine.kind);
  Measured out;
  out.untrained = untrained(asked);
  out.fit = train::memory_fit(ground.machine, schedule::ranks_per_node(config, ground.machine), ranks.layout,
                              memory);
  for (const train::StageMemory& stage : memory)
    out.device_bytes = std::max(out.device_bytes, stage.device.total());
  out.step_ns = schedule::SimulatedStep(config, ranks, ground, {}, &network).run().step_ns;
  out.figures = schedule::step_figures(config, num_ranks, ground.machine, out.step_ns);
  return out;
}

}  // namespace

int64_t Measured::device_over(cost::MachineKind kind) const {
  return kind == cost::MachineKind::Cpu ? host_over() : device_bytes - fit.device_limit;
}

int64_t Measured::over(cost::MachineKind kind) const { return std::max(device_over(kind), host_over()); }

std::string untrained(const config::Config& config) {
  try {
    runtime::require_trainable(config);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

Measured measure(const config::Config& asked, int64_t num_ranks, const schedule::Ground& ground) {
  try {
    return measured(asked, num_ranks, ground);
  } catch (const base::Error& e) {
    Measured out;
    out.refusal = e.what();
    return out;
  }
}

std::vector<Measured> measure_all(const std::vector<config::Config>& asked, int64_t num_ranks,
                                  const schedule::Ground& ground) {
  std::vector<Measured> out(asked.size());
  std::vector<std::exception_ptr> broken(asked.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < asked.size(); i = next++) try {
        out[i] = measure(asked[i], num_ranks, ground);
      } catch (...) {
        broken[i] = std::current_exception();
      }
  };
  {
    std::vector<std::jthread> helpers;
    if (asked.size() > 1 && config::usable_cores() > 1) helpers.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& e : broken)
    if (e) std::rethrow_exception(e);
  return out;
}

}  // namespace pleat::tune
