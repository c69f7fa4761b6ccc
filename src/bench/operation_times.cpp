#include "bench/operation_times.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/machine.h"

namespace pleat::bench {

std::vector<OperationTime> operation_times(const program::Program& program,
                                           const interpret::Timeline& timeline, const Ceilings& ceilings) {
  const cost::Machine machine{"measured", 0, ceilings.gemm / 1e9, ceilings.copy / 1e9, {}, {}};
  std::map<std::string, OperationTime> sums;
  for (const interpret::Span& span : timeline.spans) {
    const program::Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    const std::string name = fmt::format("{} {}", program::name_of(stage.phase), program::name_of(stage.op));
    OperationTime& sum = sums[name];
    sum.name = name;
    sum.seconds += static_cast<double>(span.end_ns - span.start_ns) / 1e9;
    sum.flops += cost::stage_flops(program, stage);
    sum.floor_seconds += static_cast<double>(cost::stage_ns(machine, {}, program, stage)) / 1e9;
    ++sum.count;
  }
  std::vector<OperationTime> out;
  for (auto& [name, sum] : sums) out.push_back(std::move(sum));
  std::sort(out.begin(), out.end(),
            [](const OperationTime& x, const OperationTime& y) { return x.seconds > y.seconds; });
  return out;
}

}  // namespace pleat::bench
