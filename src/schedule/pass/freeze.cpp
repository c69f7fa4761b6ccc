#include "schedule/pass/freeze.h"

#include <algorithm>

#include "base/error.h"
#include "model/parameters.h"
#include "model/state.h"
#include "program/edit.h"
#include "program/signature.h"

namespace pleat::schedule {
namespace {

using program::Op;
using program::Use;
namespace signature = program::signature;

void require_effect(const std::vector<std::string>& names, const std::vector<model::Parameter>& table) {
  for (const std::string& name : names)
    if (std::none_of(table.begin(), table.end(), [&](const model::Parameter& p) {
          return p.tied_to.empty() && name == model::name_of(p.parameter_class);
        }))
      base::fail("optimizer.freeze names \"{}\", which matches no parameter of this model; remove it", name);
  if (std::none_of(table.begin(), table.end(),
                   [](const model::Parameter& p) { return p.tied_to.empty() && !p.frozen; }))
    base::fail("optimizer.freeze names every class of this model: nothing is left to train");
}

// Whether the stage is there for frozen parameters alone.
bool serves_frozen(const program::Program& p, const program::Stage& s,
                   const std::vector<model::Parameter>& table, bool router) {
  const auto is_frozen_weight = [&](const Use& weight) {
    const int written = model::find_parameter(table, p.values[size_t(weight.value)].name);
    PLEAT_CHECK(written >= 0, "{} writes no weight", program::stage_name(s));
    return table[size_t(written)].frozen;
  };
  if (model::is_update(s.op)) return table[size_t(s.part)].frozen;
  switch (s.op) {
    case Op::bias_update:
      return router;
    case Op::weight_gather:
      return is_frozen_weight(signature::gather_shards::Update<Use>(s.uses).w);
    case Op::weight_unpack:  // frozen and other weights are never in one bucket
      return is_frozen_weight(signature::unpack_shares::Update<Use>(s.uses).w.front());
    case Op::grad_norm:
      return table[size_t(s.part)].frozen;
    default:
      return false;
  }
}

// The norm is summed over the parts that are left, side by side.
void close_gaps(program::Program& p) {
  int64_t num_parts = 0;
  program::ValueId parts = program::kNoValue;
  for (const program::Stage& s : p.stages) {
    if (s.op != Op::grad_norm) continue;
    program::Value& view = p.values[size_t(signature::grad_norm::Update<Use>(s.uses).parts.value)];
    view.offset = num_parts * static_cast<int64_t>(sizeof(double));
    num_parts += view.shape[0];
    parts = view.view_of;
  }
  PLEAT_CHECK(parts != program::kNoValue, "the parts of the gradient norm lie in one value");
  p.values[size_t(parts)].shape = {num_parts};
}

}  // namespace

program::Program freeze(program::Program p, const config::Config& config) {
  const std::vector<std::string>& names = config.optimizer.freeze;
  const std::vector<model::Parameter> table = model::make_parameters(config);
  require_effect(names, table);
  const bool router = std::find(names.begin(), names.end(), "router") != names.end();
  program::Edit edit(std::move(p));
  edit.erase_if([&](const program::Stage& s) { return serves_frozen(edit.program(), s, table, router); });
  p = edit.apply();
  // Ranks that sum their norms all sum the same list of parts: those of frozen parameters stay zero.
  if (std::none_of(p.stages.begin(), p.stages.end(),
                   [](const program::Stage& s) { return s.op == Op::norm_reduce; }))
    close_gaps(p);
  return without_dead_stages(std::move(p));
}

}  // namespace pleat::schedule
