#include "train/memory_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "cost/nccl_memory.h"
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
  if (kind == cost::MachineKind::Gpu) {
    out.device = interpret::device_memory(plan);
    out.device.exchange_bytes = cost::nccl_memory(mesh, program).bytes;
    out.host_bytes = plan.pinned.arena_bytes;
  } else {
    out.device.arena_bytes = plan.arena_bytes;
    out.device.window_bytes = plan.window.arena_bytes;
  }
  return out;
}

bool MemoryFit::fits() const {
  const auto none = [](const std::vector<int64_t>& over) {
    return std::all_of(over.begin(), over.end(), [](int64_t b) { return b == 0; });
  };
  return none(device_over) && none(host_over);
}

MemoryFit memory_fit(const cost::Machine& machine, int64_t ranks_per_node, int64_t num_ranks,
                     const std::vector<StageMemory>& stages) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  const int64_t here = std::min(ranks_per_node, num_ranks);
  MemoryFit out;
  out.host_limit = static_cast<int64_t>(machine.node.host_memory_gib * kGiB) / here;
  const bool cpu = machine.kind == cost::MachineKind::Cpu;
  out.device_limit = cpu ? out.host_limit : static_cast<int64_t>(machine.processor.memory_gib * kGiB);
  size_t fullest = 0, worst = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    out.device_over.push_back(std::max<int64_t>(0, stages[i].device.total() - out.device_limit));
    out.host_over.push_back(cpu ? 0 : std::max<int64_t>(0, stages[i].host_bytes - out.host_limit));
    if (stages[i].device.total() > stages[fullest].device.total()) fullest = i;
    if (out.device_over[i] + out.host_over[i] > out.device_over[worst] + out.host_over[worst]) worst = i;
  }
  const auto name = [&](size_t i) {
    return stages.size() == 1 ? std::string("a rank") : fmt::format("stage {}", i);
  };
  if (out.fits()) {
    out.text = fmt::format("fits: {} takes {} of {}", name(fullest),
                           bytes_text(stages[fullest].device.total()), bytes_text(out.device_limit));
    return out;
  }
  out.text = "does not fit:";
  const char* separator = " ";
  for (size_t i = 0; i < stages.size(); ++i) {
    if (out.device_over[i] > 0) {
      out.text += fmt::format("{}{} by {}", separator, name(i), bytes_text(out.device_over[i]));
      separator = ", ";
    }
    if (out.host_over[i] > 0) {
      out.text += fmt::format("{}{} by {} of its host", separator, name(i), bytes_text(out.host_over[i]));
      separator = ", ";
    }
  }
  out.text += fmt::format(" (a rank has {}); largest owners of {}: {}", bytes_text(out.device_limit),
                          name(worst), runtime::largest_owners(stages[worst].at_peak));
  return out;
}

}  // namespace pleat::train
