#include "schedule/simulated_step.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "config/resolve.h"
#include "cost/flops.h"
#include "cost/measured_on.h"
#include "program/repeat.h"
#include "schedule/node_reach.h"
#include "schedule/run_together.h"

namespace pleat::schedule {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Latency and rate of exchanges between threads: the median of the time of a hop of small ones, and of the bytes per
// nanosecond behind it of large ones. Medians, because some are measured while their machine does something else. Of
// ranks with a core each: others wait for cores too, and that is simulated.
bool fit_links(cost::Machine& machine, const std::vector<cost::LinkTime>& links) {
  constexpr int64_t kSmall = 64 << 10, kLarge = 1 << 20;
  const auto hops = [](const cost::LinkTime& l) {
    const bool ring =
        l.operation == "all_gather" || l.operation == "reduce_scatter" || l.operation == "all_reduce";
    return (ring ? static_cast<double>(l.ranks - 1) : 1.0) * (l.operation == "all_reduce" ? 2 : 1);
  };
  const auto counts = [&](const cost::LinkTime& l) {
    return l.ranks >= 2 && l.ranks <= machine.processor.units;
  };
  std::vector<double> latencies, rates;
  for (const cost::LinkTime& l : links)
    if (counts(l) && l.bytes <= kSmall) latencies.push_back(l.ns / hops(l));
  if (latencies.empty()) return false;
  const double latency = median(std::move(latencies));
  for (const cost::LinkTime& l : links)
    if (counts(l) && l.bytes >= kLarge && l.ns > hops(l) * latency)
      rates.push_back(static_cast<double>(l.bytes) / (l.ns - hops(l) * latency));
  if (rates.empty()) return false;
  machine.node.link = {median(std::move(rates)), latency / 1e3, 0};
  return true;
}

// Of a rank on a CPU. Costs of ranks with more or fewer threads say nothing of it.
int64_t threads_of(const config::Config& config, const Ground& ground, int64_t ranks_here) {
  const int64_t threads = config::threads_of_rank(config, ranks_here);
  if (ground.machine.kind != cost::MachineKind::Cpu || !ground.costs ||
      ground.costs->machine.threads == threads)
    return threads;
  base::fail(
      "the costs are of a rank with {} threads, but {} ranks of a node share device.threads = {}: {} each; "
      "needed is "
      "--set device.threads={}, or costs measured with device.threads={}",
      ground.costs->machine.threads, ranks_here, config.device.threads, threads,
      ground.costs->machine.threads * ranks_here, threads);
}

cost::Prices prices_of(const config::Config& config, const RankPrograms& ranks, const Ground& ground,
                       cost::RankLoad load, const cost::CostTable& table) {
  const int64_t node = ranks_per_node(config, ground.machine), here = std::min(node, ranks.layout.world());
  cost::Prices p;
  p.threads = threads_of(config, ground, here);
  p.machine = cost::machine_of_rank(ground.machine, here, p.threads);
  p.reach = reach_of(ranks.layout, node);
  p.mesh = ranks.mesh;
  p.curves = ground.curves;
  p.table = ground.costs ? &table : nullptr;
  p.table_is_carried = ground.costs_are_carried;
  p.links_measured = ground.links_measured;
  p.load = std::move(load);
  // A host that must know a count first issues stage by stage.
  p.graph =
      ground.machine.kind == cost::MachineKind::Cpu || (config.device.graph && host_waits_of(ranks) == 0);
  return p;
}

}  // namespace

Ground make_ground(cost::Machine machine, std::optional<cost::CostFile> costs,
                   std::optional<cost::Curves> curves) {
  Ground out;
  out.curves = curves ? *curves : cost::shipped_curves(machine.kind);
  if (out.curves.kind != machine.kind)
    base::fail("the curves are of a {}, but machine '{}' is a {}",
               out.curves.kind == cost::MachineKind::Gpu ? "GPU" : "CPU", machine.name,
               machine.kind == cost::MachineKind::Gpu ? "GPU" : "CPU");
  if (costs) {
    const cost::Machine source = cost::measured_on(costs->machine, machine);
    if (!curves) {
      std::vector<cost::CurvePoint> points;
      for (const cost::CostEntry& entry : costs->entries) points.push_back(cost::curve_point(entry));
      out.curves = cost::fit_curves(source, points, out.curves, "fitted to the costs").curves;
    }
    if (machine.kind == cost::MachineKind::Cpu) {
      machine.processor.units = costs->machine.cores;
      out.links_measured = fit_links(machine, costs->links);
    } else if (!cost::has_gpu(machine, costs->machine.gpu)) {
      costs->entries = cost::carried(std::move(costs->entries), source, machine, out.curves);
      out.costs_are_carried = true;
    }
  }
  out.machine = std::move(machine);
  out.costs = std::move(costs);
  return out;
}

namespace {

std::optional<RankPrograms> written_out_where_repeated(const RankPrograms& ranks) {
  if (std::none_of(ranks.programs.begin(), ranks.programs.end(), program::has_repeat)) return {};
  return written_out(ranks);
}

}  // namespace

SimulatedStep::SimulatedStep(const config::Config& config, const RankPrograms& asked, const Ground& ground,
                             cost::RankLoad load, const interpret::Network* roles)
    : ground_(ground),
      written_out_(written_out_where_repeated(asked)),
      table_(ground.costs ? cost::CostTable(ground.costs->entries) : cost::CostTable()),
      pricer_(prices_of(config, asked, ground, std::move(load), table_)) {
  const RankPrograms& ranks = written_out_ ? *written_out_ : asked;
  const bool cpu = ground.machine.kind == cost::MachineKind::Cpu;
  if (!cpu) {
    network_ = roles && !written_out_ ? *roles : interpret::network_of_roles(ranks.programs);
    for (size_t i = 0; i < ranks.programs.size(); ++i) node_of_.push_back(i);
    if (pricer_.prices().graph)
      shared_.start_ns = static_cast<int64_t>(ground.machine.processor.graph_launch_us * 1e3);
    return;
  }
  const layout::Layout& layout = ranks.layout;
  const int world = static_cast<int>(layout.world());
  network_ = interpret::network_of_ranks(
      ranks.programs, world,
      [&](int rank, program::Group group) { return group_members(layout, rank, group); },
      [&](int rank) { return static_cast<int>(layout.attention(rank).pp); });
  const int64_t here = ranks_per_node(config, ground.machine);
  node_of_.assign(ranks.programs.size(), SIZE_MAX);
  for (int rank = 0; rank < world; ++rank) {
    shared_.processor_of.push_back(static_cast<int>(rank / here));
    size_t& first = node_of_[static_cast<size_t>(layout.attention(rank).pp)];
    first = std::min(first, static_cast<size_t>(rank));
  }
  shared_.processors = static_cast<double>(ground.machine.processor.units);
  if (ground.costs) shared_.crowd = ground.costs->crowd;
}

interpret::Simulation SimulatedStep::run() const {
  if (!ground_.contention) return run_alone();
  return interpret::simulate_shared(
      network_, [this](const program::Program& p, const program::Stage& s) { return pricer_(p, s); },
      shared_);
}

interpret::Simulation SimulatedStep::run_alone() const {
  return interpret::simulate(network_, [this](const program::Program& p, const program::Stage& s) {
    return pricer_(p, s).alone_ns();
  });
}

StepFigures step_figures(const config::Config& config, int64_t num_ranks, const cost::Machine& machine,
                         int64_t step_ns) {
  StepFigures f;
  const double seconds = static_cast<double>(step_ns) / 1e9, ranks = static_cast<double>(num_ranks);
  const double seq = static_cast<double>(config.train.seq_len);
  f.step_ms = seconds * 1e3;
  f.tokens = static_cast<double>(config.train.micro_batch * config.train.num_microbatches) * seq;
  f.tokens_per_s_per_rank = f.tokens / seconds / ranks;
  f.model_tflops_per_rank = cost::model_flops(config, f.tokens, seq).total() / seconds / ranks / 1e12;
  const tensor::Dtype dtype = config.model.dtype == "bfloat16"  ? tensor::Dtype::BF16
                              : config.model.dtype == "float64" ? tensor::Dtype::F64
                                                                : tensor::Dtype::F32;
  double peak = machine.processor.flops_per_ns(dtype) / 1e3;
  if (machine.kind == cost::MachineKind::Cpu) {
    const int64_t here = std::min(ranks_per_node(config, machine), num_ranks);
    peak *= std::min(static_cast<double>(machine.processor.units) / static_cast<double>(here),
                     static_cast<double>(config::threads_of_rank(config, here)));
  }
  f.mfu = f.model_tflops_per_rank / peak;
  return f;
}

}  // namespace pleat::schedule
