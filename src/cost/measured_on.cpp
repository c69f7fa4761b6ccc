#include "cost/measured_on.h"

#include <algorithm>

#include "base/error.h"
#include "cost/machine_file.h"
#include "cost/price.h"

namespace pleat::cost {
namespace {

Machine machine_with(const CostMachine& costs) {
  if (std::optional<Machine> found = machine_of_gpu(costs.gpu)) return *std::move(found);
  base::fail(
      "the costs were measured on {}, and no machine of `pleat machines` has that GPU; needed is --machine "
      "with "
      "a file whose processor.gpu stands in its name",
      describe(costs));
}

}  // namespace

Machine default_machine(const CostMachine& costs) {
  return costs.kind == "cpu" ? find_machine(kDefaultCpu) : machine_with(costs);
}

Machine measured_on(const CostMachine& costs, const Machine& asked) {
  const bool gpu = asked.kind == MachineKind::Gpu;
  if (gpu != (costs.kind == "cuda"))
    base::fail("the costs are of a machine of kind {} ({}), but machine '{}' is of kind {}", costs.kind,
               costs.name, asked.name, gpu ? "gpu" : "cpu");
  if (!gpu) return machine_of_rank(asked, asked.node.ranks, costs.threads);
  return has_gpu(asked, costs.gpu) ? asked : machine_with(costs);
}

std::vector<CostEntry> carried(std::vector<CostEntry> entries, const Machine& source, const Machine& target,
                               const Curves& curves) {
  for (CostEntry& e : entries) {
    const CurvePoint point = curve_point(e);
    const auto ns = [&](const Machine& m) {
      return std::max(1.0, curve_ns(m, curves[point.of], point.dtype, point.work));
    };
    // A copy from or to the host goes by the link between them.
    const double times = e.key.kind.find("@pinned") != std::string::npos
                             ? source.node.host_link_gb_s / target.node.host_link_gb_s
                             : ns(target) / ns(source);
    for (double* v : {&e.ns, &e.low_ns, &e.high_ns}) *v = std::clamp(*v * times, 1.0, kMaxStageNs);
  }
  return entries;
}

}  // namespace pleat::cost
