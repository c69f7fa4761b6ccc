#include "verify/faults.h"

#include <algorithm>

#include "base/error.h"
#include "program/builder.h"
#include "program/edit.h"
#include "program/signature.h"

namespace pleat::verify {

using namespace program;

namespace {

using Sum = signature::reduce_shards::BackwardWeight<Use>;

Stage planted(Op op, Phase phase, int part, std::vector<Use> uses) {
  Stage s;
  s.op = op, s.phase = phase, s.part = part, s.uses = std::move(uses);
  return s;
}

bool is_expert_gradient(const Value& v) {
  return v.name.find(".experts.") != std::string::npos && v.name.ends_with(".grad");
}

// The stage that sums the gradient or, with no replica, uses it.
StageId first_taker(const Edit& edit, ValueId gradient) {
  const auto& stages = edit.program().stages;
  const auto found = std::find_if(stages.begin(), stages.end(), [&](const Stage& s) {
    const bool takes = s.op == Op::grad_pack || s.op == Op::grad_reduce || s.op == Op::grad_norm;
    return takes &&
           std::any_of(s.uses.begin(), s.uses.end(), [&](const Use& use) { return use.value == gradient; });
  });
  return static_cast<StageId>(found - stages.begin());
}

// Each doubled as often as makes the factor ep.
void scale_expert_gradients(Edit& edit, int64_t ep, int part) {
  const ValueId num_values = static_cast<ValueId>(edit.program().values.size());
  for (ValueId id = 0; id < num_values; ++id) {
    if (!is_expert_gradient(edit.value(id))) continue;
    const StageId complete = first_taker(edit, id);
    for (int64_t factor = 1; factor < ep; factor *= 2)
      edit.insert_before(complete, planted(Op::tie_grad, Phase::BackwardWeight, part++, {r(id), u(id)}));
  }
}

// The first expert's part of every expert gradient of the last layer that has experts, zeroed where the sums begin.
void drop_expert(Edit& edit, int part) {
  const ValueId num_values = static_cast<ValueId>(edit.program().values.size());
  int layer = -1;
  for (ValueId id = 0; id < num_values; ++id)
    if (is_expert_gradient(edit.value(id))) layer = std::max(layer, edit.value(id).layer);
  for (ValueId id = 0; id < num_values; ++id) {
    const Value whole = edit.value(id);
    if (!is_expert_gradient(whole) || whole.layer != layer) continue;
    const StageId sum = first_taker(edit, id);
    PLEAT_CHECK(edit[sum].op != Op::grad_norm, "{} is summed with nobody", whole.name);
    Value expert = whole;
    expert.name += ".expert0";
    expert.shape.erase(expert.shape.begin());
    expert.view_of = id;
    expert.life = Life::Step;
    edit.insert_before(sum, planted(Op::zero, Phase::BackwardWeight, part++, {w(edit.add(expert))}));
  }
}

// Every layer's counts, zeroed where the sums over ranks begin.
void drop_counts(Edit& edit, int part) {
  const StageId end = edit.num_stages();
  for (StageId s = 0; s < end; ++s)
    if (edit[s].op == Op::load_reduce && edit.value(edit[s].uses[0].value).name.ends_with(".load"))
      edit.insert_before(s, planted(Op::zero, edit[s].phase, part++, {w(edit[s].uses[0].value)}));
}

StageId last_stage(const Edit& edit, Op op) {
  StageId s = edit.num_stages();
  while (s-- > 0 && edit[s].op != op) {
  }
  return s;
}

}  // namespace

Program with_fault(Program program, Fault fault, const runtime::RankPlace& place, const model::Mesh& mesh,
                   size_t num_parameters) {
  Edit edit(std::move(program));
  const int free_part = static_cast<int>(num_parameters);
  const bool is_last_rank = place.rank == mesh.world() - 1;
  if (fault == Fault::ScaleExpertGradients) scale_expert_gradients(edit, mesh.ep, free_part);
  if (fault == Fault::DropExpert && mesh.edp == 1)
    base::fail("no expert's gradients are summed here: every expert is on one rank (edp = 1)");
  if (fault == Fault::DropExpert && is_last_rank) drop_expert(edit, free_part);
  if (fault == Fault::DropCounts && is_last_rank) drop_counts(edit, free_part);
  if (fault == Fault::SkipNorm && is_last_rank)
    if (const StageId norm = last_stage(edit, Op::grad_norm); norm >= 0) edit.erase(norm);
  if (fault == Fault::DropReduction && is_last_rank)
    if (const StageId sum = last_stage(edit, Op::grad_reduce); sum >= 0)
      edit.insert_before(
          sum, planted(Op::zero, Phase::BackwardWeight, free_part, {w(Sum(edit[sum].uses).g.value)}));
  return edit.apply();
}

Program only_update(Program program) {
  Edit edit(std::move(program));
  edit.erase_if([](const Stage& s) {
    const bool sums = s.op == Op::grad_pack || s.op == Op::grad_reduce || s.op == Op::share_reduce;
    return (s.microbatch >= 0 && !sums) || s.op == Op::load_reduce || s.op == Op::bias_update ||
           s.op == Op::loss_reduce || s.op == Op::count_reduce;
  });
  for (size_t i = 0; i < edit.program().values.size(); ++i) {
    const ValueId id = static_cast<ValueId>(i);
    if (edit.value(id).name.ends_with(".grad")) edit.value(id).life = Life::Input;
    if (edit.value(id).name == "loss") edit.insert_before(0, planted(Op::zero, Phase::Forward, 3, {w(id)}));
  }
  Program p = edit.apply();
  // Results of the microbatches are none any more.
  std::vector<char> used(p.values.size(), 0);
  for (const Stage& s : p.stages)
    for (const Use& use : s.uses)
      if (use.value != kNoValue) used[static_cast<size_t>(root_of(p, use.value))] = 1;
  for (size_t i = 0; i < p.values.size(); ++i)
    if (!used[i] && p.values[i].life == Life::Result) p.values[i].life = Life::Step;
  return p;
}

}  // namespace pleat::verify
