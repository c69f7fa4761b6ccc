// Programs without what nothing uses.
#include "program/edit.h"

namespace pleat::program {

Program without_unused_values(Program p, const MayGo& may_go) {
  std::vector<char> stays(p.values.size());
  for (size_t i = 0; i < stays.size(); ++i) stays[i] = !may_go(p.values[i]);
  for (const Stage& stage : p.stages) {
    for (const Use& use : stage.uses)
      if (use.value != kNoValue) stays[static_cast<size_t>(use.value)] = 1;
    if (stage.scratch != kNoValue) stays[static_cast<size_t>(stage.scratch)] = 1;
  }
  for (size_t i = 0; i < stays.size(); ++i)
    if (stays[i]) stays[static_cast<size_t>(root_of(p, static_cast<ValueId>(i)))] = 1;

  std::vector<ValueId> moved(p.values.size(), kNoValue);
  std::vector<Value> kept;
  for (size_t i = 0; i < p.values.size(); ++i) {
    if (!stays[i]) continue;
    moved[i] = static_cast<ValueId>(kept.size());
    kept.push_back(std::move(p.values[i]));
    for (ValueId* of : {&kept.back().view_of, &kept.back().scale_of})
      if (*of != kNoValue) *of = moved[static_cast<size_t>(*of)];
  }
  p.values = std::move(kept);
  for (Stage& stage : p.stages) {
    for (Use& use : stage.uses)
      if (use.value != kNoValue) use.value = moved[static_cast<size_t>(use.value)];
    if (stage.scratch != kNoValue) stage.scratch = moved[static_cast<size_t>(stage.scratch)];
  }
  return p;
}

Program without_dead_stages(Program program) {
  Edit edit(std::move(program));
  const Program& p = edit.program();
  std::vector<char> live(p.values.size());  // roots whose bytes a later stage or the host reads
  for (size_t i = 0; i < live.size(); ++i) live[i] = p.values[i].life != Life::Step;
  for (StageId s = edit.end(); s-- > 0;) {
    bool needed = class_of(edit[s].op) == OpClass::Transfer;
    for (const Use& use : edit[s].uses)
      needed |= use.value != kNoValue && use.access != Access::Read &&
                live[static_cast<size_t>(root_of(p, use.value))];
    if (!needed) {
      edit.erase(s);
      continue;
    }
    for (const Use& use : edit[s].uses)
      if (use.value != kNoValue) live[static_cast<size_t>(root_of(p, use.value))] = 1;
  }
  return without_unused_values(edit.apply(), [](const Value& v) { return v.life == Life::Step; });
}

}  // namespace pleat::program
