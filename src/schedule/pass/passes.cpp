#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "schedule/pass/freeze.h"
#include "schedule/pass/fuse.h"
#include "schedule/pass/message_buffers.h"
#include "schedule/pass/pass.h"
#include "schedule/pass/recompute.h"

namespace pleat::schedule {

const std::vector<Pass>& pass_table() {
  static const std::vector<Pass> table = {
      {"freeze", Promise::Exact, [](const config::Config& c) { return !c.optimizer.freeze.empty(); },
       [](program::Program p, const config::Config& c) { return freeze(std::move(p), c); }},
      {"recompute", Promise::Exact, [](const config::Config& c) { return !c.recompute.modules.empty(); },
       [](program::Program p, const config::Config& c) {
         return recompute(std::move(p), {c.recompute.modules, config::recompute_layers(c)});
       }},
      {"fuse", Promise::Bounded,
       [](const config::Config& c) { return c.device.kind == "cuda" && c.model.dtype == "bfloat16"; },
       [](program::Program p, const config::Config&) { return fuse(std::move(p)); }},
  };
  return table;
}

program::Program apply_passes(program::Program program, const config::Config& config,
                              const std::vector<std::string>& disabled, std::vector<PassReport>* reports,
                              const PassObserver& observe) {
  for (const std::string& name : disabled)
    if (std::none_of(pass_table().begin(), pass_table().end(), [&](const Pass& p) { return p.name == name; }))
      base::fail("there is no pass '{}' to disable", name);
  for (const Pass& pass : pass_table()) {
    if (!pass.wanted(config) || std::find(disabled.begin(), disabled.end(), pass.name) != disabled.end())
      continue;
    const auto start = std::chrono::steady_clock::now();
    PassReport report{std::string(pass.name), 0, program.stages.size(), 0};
    program = pass.apply(std::move(program), config);
    report.stages_after = program.stages.size();
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (reports) reports->push_back(report);
    if (observe) observe(pass, program);
  }
  // Last, because it speaks of positions in the list.
  return bound_message_buffers(std::move(program));
}

}  // namespace pleat::schedule
