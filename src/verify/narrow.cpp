#include "verify/narrow.h"

#include "model/overflow.h"
#include "program/builder.h"
#include "program/edit.h"
#include "schedule/pass/pass.h"

namespace pleat::verify {

using program::Edit;
using program::OpClass;
using program::Phase;
using program::Stage;
using program::Value;

std::set<std::string> narrow_names(const config::Config& asked, const std::vector<model::Parameter>& table,
                                   const schedule::BuildOptions& build) {
  std::set<std::string> out;
  std::vector<config::Config> steps = {asked};
  if (asked.moe.token_budget > 0 && asked.moe.overflow == "rerun")
    steps.push_back(model::rerun_config(asked));
  for (config::Config& c : steps) {
    c.model.dtype = "bfloat16";
    const program::Program p = schedule::apply_passes(schedule::build_training_step(c, table, build), c);
    for (const Value& v : p.values)
      if (v.dtype == tensor::Dtype::BF16 && v.life != program::Life::Persistent) out.insert(v.name);
  }
  return out;
}

program::Program with_narrow_stores(program::Program program, const std::set<std::string>& names) {
  Edit edit(std::move(program));
  int part = 0;
  for (program::StageId s = 0; s < edit.num_stages(); ++s) {
    const Stage& from = edit[s];
    // What moves was rounded where it was made.
    if (from.phase == Phase::Update || class_of(from.op) == OpClass::Transfer ||
        class_of(from.op) == OpClass::Copy || class_of(from.op) == OpClass::Store)
      continue;
    program::StageId behind = s;
    for (const program::Use& use : from.uses) {
      if (use.value == program::kNoValue || use.access == program::Access::Read ||
          !names.contains(edit.value(use.value).name))
        continue;
      Stage round;
      round.op = program::Op::narrow;
      round.phase = from.phase, round.lane = from.lane, round.model = from.model;
      round.microbatch = from.microbatch, round.chunk = from.chunk, round.layer = from.layer;
      round.part = part++, round.replay = from.replay;
      round.uses = {program::u(use.value)};
      behind = edit.insert_after(behind, std::move(round));
    }
  }
  return edit.apply();
}

}  // namespace pleat::verify
