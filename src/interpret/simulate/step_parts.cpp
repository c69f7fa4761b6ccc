#include "interpret/simulate/step_parts.h"

#include <map>

#include "interpret/simulate/intervals.h"

namespace pleat::interpret {

StepParts step_parts(const program::Program& program, const Timeline& timeline, int64_t step_ns,
                     const PartOf& part_of) {
  std::map<std::string, Intervals> of;
  std::vector<std::string> order;
  for (const Span& span : timeline.spans) {
    const std::string name = part_of(program, program.stages[static_cast<size_t>(span.stage)]);
    const auto [at, fresh] = of.try_emplace(name);
    if (fresh && !name.empty()) order.push_back(name);
    at->second.push_back({span.start_ns, span.end_ns});
  }
  StepParts out;
  Intervals seen = united(of[""]);
  out.work_ns = length(seen);
  for (const std::string& name : order) {
    const Intervals own = united(of[name]);
    out.parts.push_back({name, length(own), length(outside(own, seen))});
    seen.insert(seen.end(), own.begin(), own.end());
    seen = united(std::move(seen));
  }
  out.idle_ns = step_ns - length(seen);
  return out;
}

}  // namespace pleat::interpret
