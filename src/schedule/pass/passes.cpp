#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "interpret/check/check.h"
#include "interpret/check/check_windows.h"
#include "schedule/pass/early_update.h"
#include "schedule/pass/freeze.h"
#include "schedule/pass/fuse.h"
#include "schedule/pass/host_copies.h"
#include "schedule/pass/host_states.h"
#include "schedule/pass/host_waits.h"
#include "schedule/pass/low_precision.h"
#include "schedule/pass/message_buffers.h"
#include "schedule/pass/message_chain.h"
#include "schedule/pass/offload.h"
#include "schedule/pass/pass.h"
#include "schedule/pass/recompute.h"
#include "schedule/pass/ring_buffers.h"
#include "schedule/pass/scratch.h"
#include "schedule/pass/windows.h"

namespace pleat::schedule {

namespace {

// Evaluations and gathers go through the table too; these techniques are none of theirs.
bool has_backward(const program::Program& p) {
  return std::any_of(p.stages.begin(), p.stages.end(), [](const program::Stage& s) {
    return s.phase == program::Phase::BackwardInput || s.phase == program::Phase::BackwardWeight;
  });
}

// A pipeline rank may hold no layer of a module, such as one whose layers are all dense; some rank must. Where the
// configuration does not say what the others hold (verify/layout_run.h), whoever does has asked.
program::Program recompute_modules(program::Program p, const config::Config& c) {
  const RecomputeOptions options{c.recompute.modules, config::recompute_layers(c), has_messages(p)};
  if (options.is_part && c.parallel.pp > 1 &&
      std::any_of(options.modules.begin(), options.modules.end(),
                  [&](const std::string& m) { return freed_by(p, m, options.layers).empty(); }))
    require_freed_by_ranks(c);
  return recompute(std::move(p), options);
}

// The same of what is offloaded.
program::Program offload_modules_of(program::Program p, const config::Config& c) {
  OffloadOptions options = offload_options(c);
  options.is_part = has_messages(p);
  if (options.is_part && c.parallel.pp > 1) {
    std::vector<bool> goes(options.modules.size(), false);
    for (const SavedValue& v : offloaded_values(p, options))
      for (const size_t module : v.modules) goes[module] = true;
    if (std::find(goes.begin(), goes.end(), false) != goes.end()) require_offloaded_by_ranks(c);
  }
  return offload(std::move(p), options);
}

}  // namespace

const std::vector<Pass>& pass_table() {
  static const std::vector<Pass> table = {
      {"freeze", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return !c.optimizer.freeze.empty() && has_backward(p);
       },
       [](program::Program p, const config::Config& c, program::Meeting) { return freeze(std::move(p), c); }},
      {"recompute", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return !c.recompute.modules.empty() && has_backward(p);
       },
       [](program::Program p, const config::Config& c, program::Meeting) {
         return recompute_modules(std::move(p), c);
       }},
      {"low_precision", Promise::Bounded,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return c.precision.recipe != "none" && has_backward(p);
       },
       [](program::Program p, const config::Config& c, program::Meeting) {
         return low_precision(std::move(p), c);
       }},
      {"fuse", Promise::Bounded,
       [](const config::Config& c, const program::Program&, program::Meeting) {
         return c.device.kind == "cuda" && c.model.dtype == "bfloat16";
       },
       [](program::Program p, const config::Config&, program::Meeting) { return fuse(std::move(p)); }},
      // Behind all that reads weights.
      {"early_update", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return c.optimizer.update_at == "backward" && has_backward(p);
       },
       [](program::Program p, const config::Config&, program::Meeting) {
         return early_update(std::move(p));
       }},
      // Behind all that says what a backward reads.
      {"offload", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return !c.offload.modules.empty() && has_backward(p);
       },
       [](program::Program p, const config::Config& c, program::Meeting) {
         return offload_modules_of(std::move(p), c);
       }},
      {"host_states", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return c.optimizer.state_space == "host" && has_device_states(p);
       },
       [](program::Program p, const config::Config& c, program::Meeting) {
         return host_states(std::move(p), c.optimizer.state_bucket_mb << 20);
       },
       true},
      // What a GPU and its host give each other.
      {"host_copies", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return c.device.kind == "cuda" && has_host_values(p);
       },
       [](program::Program p, const config::Config&, program::Meeting) { return host_copies(std::move(p)); },
       true},
      // They bound how far lanes run ahead of each other, whatever stages there are by then.
      {"message_buffers", Promise::Exact,
       [](const config::Config&, const program::Program& p, program::Meeting) {
         return !message_waits(p).empty();
       },
       [](program::Program p, const config::Config&, program::Meeting) {
         return bound_message_buffers(std::move(p));
       },
       true},
      // Behind the waits that go by turns: from here on some messages stand ahead of theirs.
      {"message_chain", Promise::Exact,
       [](const config::Config&, const program::Program& p, program::Meeting meeting) {
         return meeting == program::Meeting::OnDevice && is_interleaved(p);
       },
       [](program::Program p, const config::Config&, program::Meeting) {
         return chain_messages(std::move(p));
       },
       true},
      {"ring_buffers", Promise::Exact,
       [](const config::Config&, const program::Program& p, program::Meeting) {
         return !ring_waits(p).empty();
       },
       [](program::Program p, const config::Config&, program::Meeting) {
         return bound_ring_buffers(std::move(p));
       },
       true},
      // Whatever stages there are by then; the meetings it makes are exchanges like others.
      {"windows", Promise::Exact,
       [](const config::Config&, const program::Program& p, program::Meeting) { return has_windows(p); },
       [](program::Program p, const config::Config&, program::Meeting) {
         return place_windows(std::move(p));
       },
       true},
      // Last: the host waits for all that an exchange waits for, whatever pass asked for it.
      {"host_waits", Promise::Exact,
       [](const config::Config& c, const program::Program& p, program::Meeting) {
         return c.device.kind == "cuda" &&
                std::any_of(p.stages.begin(), p.stages.end(),
                            [](const program::Stage& s) { return program::is_exchange(s.op); });
       },
       [](program::Program p, const config::Config&, program::Meeting meeting) {
         return host_waits(std::move(p), meeting);
       },
       true},
      // Behind all that makes or copies stages: every one has scratch of its own.
      {"scratch", Promise::Exact,
       [](const config::Config& c, const program::Program&, program::Meeting) {
         return c.device.kind == "cuda";
       },
       [](program::Program p, const config::Config&, program::Meeting) { return add_scratch(std::move(p)); },
       true},
  };
  return table;
}

program::Program apply_pass(const Pass& pass, program::Program program, const config::Config& config,
                            program::Meeting meeting) {
  program = pass.apply(std::move(program), config, meeting);
  interpret::require_ok(interpret::check(program),
                        fmt::format("program {} after pass {}", program.name, pass.name));
  return program;
}

program::Program apply_passes(program::Program program, const config::Config& config,
                              const PassOptions& options) {
  for (const std::string& name : options.disabled)
    if (std::none_of(pass_table().begin(), pass_table().end(), [&](const Pass& p) { return p.name == name; }))
      base::fail("there is no pass '{}' to disable", name);
  interpret::require_ok(interpret::check(program), fmt::format("program {} as built", program.name));
  bool edited = !options.edit;  // the table ends with passes that place
  const auto edit_once = [&] {
    if (!std::exchange(edited, true)) program = options.edit(std::move(program));
  };
  for (const Pass& pass : pass_table()) {
    if (pass.places) edit_once();
    if (!pass.wanted(config, program, options.meeting) ||
        std::find(options.disabled.begin(), options.disabled.end(), pass.name) != options.disabled.end())
      continue;
    const auto start = std::chrono::steady_clock::now();
    PassReport report{std::string(pass.name), 0, program.stages.size(), 0};
    program = apply_pass(pass, std::move(program), config, options.meeting);
    report.stages_after = program.stages.size();
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options.reports) options.reports->push_back(report);
    if (options.observe) options.observe(pass, program);
  }
  interpret::require_ok(interpret::check_windows(program),
                        fmt::format("program {} after all passes", program.name));
  return program;
}

}  // namespace pleat::schedule
