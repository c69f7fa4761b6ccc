#include "train/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "cost/nccl_memory.h"
#include "model/overflow.h"
#include "report/format.h"
#include "runtime/require_memory.h"

namespace pleat::train {
namespace {

std::string bytes_text(int64_t bytes) { return report::format_bytes(static_cast<double>(bytes)); }

}  // namespace

StageMemory stage_memory(cost::MachineKind kind, const model::Mesh& mesh, const program::Program& program,
                         const interpret::Plan& plan) {
  StageMemory out;
  out.at_peak = plan.at_peak;
  out.host_bytes = plan.pinned.arena_bytes;
  if (kind == cost::MachineKind::Gpu) {
    out.device = interpret::device_memory(plan);
    out.staging_bytes = interpret::staging_bytes(plan);
    out.device.exchange_bytes = cost::nccl_memory(mesh, program).bytes;
  } else {
    out.device.arena_bytes = plan.arena_bytes;
    out.device.window_bytes = plan.window.arena_bytes;
  }
  return out;
}

StageMemory larger(const StageMemory& a, const StageMemory& b) {
  StageMemory out = a.device.arena_bytes >= b.device.arena_bytes ? a : b;
  out.device.window_bytes = std::max(a.device.window_bytes, b.device.window_bytes);
  out.device.exchange_bytes = std::max(a.device.exchange_bytes, b.device.exchange_bytes);
  out.host_bytes = std::max(a.host_bytes, b.host_bytes);
  out.staging_bytes = std::max(a.staging_bytes, b.staging_bytes);
  return out;
}

void add_rerun(std::vector<StageMemory>& stages, const config::Config& config,
               const schedule::RankPrograms& ranks, int64_t num_ranks, cost::MachineKind kind) {
  if (!model::may_rerun(config, ranks.programs)) return;
  const schedule::RankPrograms again = schedule::build_ranks(model::rerun_config(config), num_ranks);
  for (size_t i = 0; i < stages.size(); ++i)
    stages[i] = larger(stages[i],
                       stage_memory(kind, again.mesh, again.programs[i], interpret::plan(again.programs[i])));
}

bool MemoryFit::fits() const {
  return host_over() == 0 &&
         std::all_of(device_over.begin(), device_over.end(), [](int64_t b) { return b == 0; });
}

MemoryFit memory_fit(const cost::Machine& machine, int64_t ranks_per_node, const layout::Layout& layout,
                     const std::vector<StageMemory>& stages) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const bool cpu = machine.kind == cost::MachineKind::Cpu;
  MemoryFit out;
  out.host_limit = static_cast<int64_t>(machine.node.host_memory_gib * kGiB);
  out.device_limit = cpu ? out.host_limit : static_cast<int64_t>(machine.processor.memory_gib * kGiB);
  // Of the node that takes most, how many ranks it has and which of their stages takes most.
  int64_t here = 0;
  size_t fullest_there = 0;
  const auto on_host = [&](size_t i) {
    return stages[i].host_bytes + (cpu ? stages[i].device.total() : stages[i].staging_bytes);
  };
  for (int64_t first = 0; first < layout.world(); first += ranks_per_node) {
    const int64_t end = std::min(first + ranks_per_node, layout.world());
    int64_t bytes = 0, staging = 0;
    size_t most = static_cast<size_t>(layout.attention(static_cast<int>(first)).pp);
    for (int64_t rank = first; rank < end; ++rank) {
      const size_t stage = static_cast<size_t>(layout.attention(static_cast<int>(rank)).pp);
      bytes += on_host(stage), staging += stages[stage].staging_bytes;
      if (on_host(stage) > on_host(most)) most = stage;
    }
    if (here == 0 || bytes > out.host_bytes)
      out.host_bytes = bytes, out.staging_bytes = staging, here = end - first, fullest_there = most;
  }
  size_t fullest = 0, worst = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    out.device_over.push_back(cpu ? 0 : std::max<int64_t>(0, stages[i].device.total() - out.device_limit));
    if (stages[i].device.total() > stages[fullest].device.total()) fullest = i;
    if (out.device_over[i] > out.device_over[worst]) worst = i;
  }
  const auto name = [&](size_t i) {
    return stages.size() == 1 ? std::string("a rank") : fmt::format("stage {}", i);
  };
  const std::string node = here == 1 ? "a rank" : fmt::format("the {} ranks of a node", here);
  const char* takes = here == 1 ? "takes" : "take";
  const std::string parts = runtime::host_parts(out.host_bytes - out.staging_bytes, out.staging_bytes);
  if (!cpu)
    out.host_text = fmt::format("{} {} {} of {} of host memory: {}", node, takes, bytes_text(out.host_bytes),
                                bytes_text(out.host_limit), parts);
  if (out.fits()) {
    out.text = cpu ? fmt::format("fits: {} {} {} of {}", node, takes, bytes_text(out.host_bytes),
                                 bytes_text(out.host_limit))
                   : fmt::format("fits: {} takes {} of {}", name(fullest),
                                 bytes_text(stages[fullest].device.total()), bytes_text(out.device_limit));
    return out;
  }
  out.text = "does not fit:";
  const char* separator = " ";
  for (size_t i = 0; i < stages.size(); ++i) {
    if (out.device_over[i] == 0) continue;
    out.text += fmt::format("{}{} by {}", separator, name(i), bytes_text(out.device_over[i]));
    separator = ", ";
  }
  if (*separator == ',') out.text += fmt::format(" (a rank has {})", bytes_text(out.device_limit));
  if (out.host_over() > 0) {
    out.text += fmt::format("{}{} {} {} of host memory{}, {} more than the {} there are", separator, node,
                            takes, bytes_text(out.host_bytes), cpu ? "" : fmt::format(" ({})", parts),
                            bytes_text(out.host_over()), bytes_text(out.host_limit));
    if (out.device_over[worst] == 0) worst = fullest_there;
  }
  out.text +=
      fmt::format("; largest owners of {}: {}", name(worst), runtime::largest_owners(stages[worst].at_peak));
  return out;
}

}  // namespace pleat::train
