#include "bench/operation_times.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "cost/flops.h"
#include "cost/price.h"
#include "cost/stage_work.h"

namespace pleat::bench {
namespace {

// What goes to other ranks has no ceiling here.
double floor_seconds(const program::Program& program, const program::Stage& stage, const Ceilings& ceilings) {
  if (program::is_exchange(stage.op) || program::class_of(stage.op) == program::OpClass::Store) return 0;
  const kernels::Work work = cost::stage_work(program, stage, cost::RoutedRows::Balanced);
  const double rate =
      cost::rate_dtype(program, stage) == tensor::Dtype::E4M3 ? ceilings.codes : ceilings.gemm;
  return std::max(rate > 0 ? work.flops / rate : 0, ceilings.copy > 0 ? work.bytes / ceilings.copy : 0);
}

}  // namespace

std::vector<OperationTime> operation_times(const program::Program& program,
                                           const interpret::Timeline& timeline, const Ceilings& ceilings) {
  std::map<std::string, OperationTime> sums;
  for (const interpret::Span& span : timeline.spans) {
    const program::Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    const std::string name = fmt::format("{} {}", program::name_of(stage.phase), program::name_of(stage.op));
    OperationTime& sum = sums[name];
    sum.name = name;
    sum.seconds += static_cast<double>(span.end_ns - span.start_ns) / 1e9;
    sum.flops += cost::stage_flops(program, stage);
    sum.floor_seconds += floor_seconds(program, stage, ceilings);
    ++sum.count;
  }
  std::vector<OperationTime> out;
  for (auto& [name, sum] : sums) out.push_back(std::move(sum));
  std::sort(out.begin(), out.end(),
            [](const OperationTime& x, const OperationTime& y) { return x.seconds > y.seconds; });
  return out;
}

}  // namespace pleat::bench
