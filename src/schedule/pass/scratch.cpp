#include "schedule/pass/scratch.h"

#include <fmt/format.h>

#include "cost/stage_work.h"
#include "program/edit.h"
#include "program/value_name.h"

namespace pleat::schedule {
namespace {

using namespace program;

// "mb0.L3.scratch.dgrad.attention": as unique as the stage's name.
ValueName scratch_name(const Stage& s) {
  std::string what = fmt::format("scratch.{}.{}", name_of(s.phase), name_of(s.op));
  if (s.replay) what += ".replay";
  if (s.model) what += fmt::format(".model{}", s.model);
  if (s.part) what += fmt::format("[{}]", s.part);
  return tagged(what, s.microbatch, s.layer, s.chunk ? s.chunk : -1);
}

}  // namespace

Program add_scratch(Program program) {
  Edit edit(std::move(program));
  for (StageId s = 0; s < edit.num_stages(); ++s) {
    Stage& stage = edit[s];
    const int64_t bytes = cost::stage_scratch(edit.program(), stage);
    if (bytes == 0) continue;
    const ValueName name = scratch_name(stage);
    Value v;
    v.name = name.text, v.microbatch = name.microbatch, v.layer = name.layer;
    v.dtype = tensor::Dtype::U8, v.shape = {bytes};
    v.owner = Owner::Workspace;
    stage.scratch = edit.add(std::move(v));
  }
  return edit.apply();
}

}  // namespace pleat::schedule
