#include "schedule/pass/freeze.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace pleat::schedule {
namespace {

// Drops stages nothing that lasts depends on, then the values nothing uses.
void drop_unused(program::Program& p) {
  std::vector<bool> live(p.values.size());
  for (size_t i = 0; i < live.size(); ++i) live[i] = p.values[i].life != program::Life::Step;
  std::vector<program::Stage> kept;
  for (auto stage = p.stages.rbegin(); stage != p.stages.rend(); ++stage) {
    // A message has two ends, and only both together can go: the other rank's program decides as well.
    bool needed = program::class_of(stage->op) == program::OpClass::Transfer;
    for (const program::Use& u : stage->uses)
      needed |= u.value != program::kNoValue && u.access != program::Access::Read &&
                live[size_t(program::root_of(p, u.value))];
    if (!needed) continue;
    for (const program::Use& u : stage->uses)
      if (u.value != program::kNoValue)
        live[size_t(program::root_of(p, u.value))] = live[size_t(u.value)] = true;
    kept.push_back(std::move(*stage));
  }
  p.stages.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
  std::vector<program::ValueId> renamed(p.values.size(), program::kNoValue);
  std::vector<program::Value> values;
  for (size_t i = 0; i < p.values.size(); ++i) {
    if (!live[i]) continue;
    renamed[i] = static_cast<program::ValueId>(values.size());
    values.push_back(std::move(p.values[i]));
    program::ValueId& root = values.back().view_of;
    if (root != program::kNoValue) root = renamed[size_t(root)];
  }
  p.values = std::move(values);
  for (program::Stage& stage : p.stages)
    for (program::Use& u : stage.uses)
      if (u.value != program::kNoValue) u.value = renamed[size_t(u.value)];
}

}  // namespace

bool is_frozen(const config::Config& config, const model::Parameter& p) {
  const std::vector<std::string>& names = config.optimizer.freeze;
  return std::find(names.begin(), names.end(), model::name_of(p.parameter_class)) != names.end();
}

program::Program freeze(program::Program p, const config::Config& config) {
  const std::vector<model::Parameter> table = model::make_parameters(config);
  using program::Op;
  bool any_left = false, router = false;
  for (const std::string& name : config.optimizer.freeze) {
    router |= name == "router";
    if (std::none_of(table.begin(), table.end(), [&](const model::Parameter& t) {
          return t.tied_to.empty() && name == model::name_of(t.parameter_class);
        }))
      base::fail("optimizer.freeze names \"{}\", which matches no parameter of this model; remove it", name);
  }
  for (const model::Parameter& t : table) any_left |= t.tied_to.empty() && !is_frozen(config, t);
  if (!any_left) base::fail("optimizer.freeze names every class of this model: nothing is left to train");
  std::erase_if(p.stages, [&](const program::Stage& s) {
    if (s.op == Op::bias_update) return router;
    if (s.op == Op::weight_gather || s.op == Op::weight_unpack) {
      // Frozen and other weights are never in one bucket.
      const int written = model::find_parameter(table, p.values[size_t(s.uses.back().value)].name);
      PLEAT_CHECK(written >= 0, "{} writes no weight", program::stage_name(s));
      return is_frozen(config, table[size_t(written)]);
    }
    const bool of_parameter = s.op == Op::adamw || s.op == Op::adamw_narrow || s.op == Op::grad_norm;
    return of_parameter && is_frozen(config, table[size_t(s.part)]);
  });
  const bool alone = std::none_of(p.stages.begin(), p.stages.end(),
                                  [](const program::Stage& s) { return s.op == Op::norm_reduce; });
  if (!alone) {
    // All ranks sum the same list of parts; those of frozen parameters stay zero.
    drop_unused(p);
    return p;
  }
  // The norm is summed over the parts that are left, side by side.
  int64_t num_parts = 0;
  program::ValueId parts = program::kNoValue;
  for (const program::Stage& s : p.stages) {
    if (s.op != Op::grad_norm) continue;
    program::Value& view = p.values[size_t(s.uses.back().value)];
    view.offset = num_parts * static_cast<int64_t>(sizeof(double));
    num_parts += view.shape[0];
    parts = view.view_of;
  }
  PLEAT_CHECK(parts != program::kNoValue, "the parts of the gradient norm lie in one value");
  p.values[size_t(parts)].shape = {num_parts};
  drop_unused(p);
  return p;
}

}  // namespace pleat::schedule
