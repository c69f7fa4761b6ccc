#include "interpret/check/check_repeat.h"

#include <fmt/format.h>

#include "program/repeat.h"

namespace pleat::interpret {

using namespace program;

void check_repeat(const Program& program, CheckReport& report) {
  if (!has_repeat(program)) return;
  const int32_t microbatch = program.repeat.microbatch;
  const StageRange range = repeated(program);
  const auto fault = [&](StageId s, const std::string& what) {
    report.faults.push_back(stage_name(program.stages[static_cast<size_t>(s)]) + ": " + what);
  };
  if (program.repeat.times < 1)
    report.faults.push_back(fmt::format("microbatch {} is repeated {} times, needed 1 or more", microbatch,
                                        program.repeat.times));
  if (range.first == range.end)
    report.faults.push_back(fmt::format("microbatch {} is repeated and has no stages", microbatch));
  for (StageId s = 0; s < static_cast<StageId>(program.stages.size()); ++s) {
    const Stage& stage = program.stages[static_cast<size_t>(s)];
    const bool inside = range.holds(s);
    if (inside && stage.microbatch != microbatch)
      fault(s, fmt::format("stands among the stages of microbatch {}, which are repeated", microbatch));
    const auto touches = [&](ValueId value, Access access) {
      if (value == kNoValue) return;
      const Value& v = program.values[static_cast<size_t>(root_of(program, value))];
      if (!inside) {
        if (v.microbatch == microbatch)
          fault(s, fmt::format("uses '{}' of microbatch {}, which is repeated", v.name, microbatch));
        return;
      }
      if (v.microbatch == microbatch) return;
      if (v.microbatch >= 0)
        fault(s, fmt::format("is repeated and uses '{}' of another microbatch", v.name));
      else if (access == Access::Write && v.space != Space::Window)
        fault(s, fmt::format("is repeated and overwrites '{}' in every pass", v.name));
    };
    for (const Use& use : stage.uses) touches(use.value, use.access);
    touches(stage.scratch, Access::Write);
  }
}

}  // namespace pleat::interpret
