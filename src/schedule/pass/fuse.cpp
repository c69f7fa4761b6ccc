#include "schedule/pass/fuse.h"

#include <optional>

namespace pleat::schedule {
namespace {

using program::Op;
using program::Phase;
using program::Stage;
using program::Use;

std::optional<Op> norm_back(Op op) {
  switch (op) {
    case Op::attn_norm:
      return Op::attn_norm_back;
    case Op::q_norm:
      return Op::q_norm_back;
    case Op::kv_norm:
      return Op::kv_norm_back;
    case Op::mlp_norm:
      return Op::mlp_norm_back;
    case Op::final_norm:
      return Op::final_norm_back;
    default:
      return {};
  }
}

bool same_place(const Stage& a, const Stage& b) {
  return a.lane == b.lane && a.microbatch == b.microbatch && a.layer == b.layer && a.part == b.part;
}

// dgrad (dy x w rstd dresidual? -> dx+) and wgrad (dy x rstd -> dw+) of one norm.
std::optional<Stage> both_gradients(const Stage& a, const Stage& b) {
  const auto op = norm_back(a.op);
  if (!op || b.op != a.op || !same_place(a, b)) return {};
  if (a.phase != Phase::BackwardInput || b.phase != Phase::BackwardWeight) return {};
  if (a.uses[0].value != b.uses[0].value || a.uses[1].value != b.uses[1].value ||
      a.uses[3].value != b.uses[2].value)
    return {};
  Stage out = a;
  out.op = *op;
  out.uses.push_back(b.uses[3]);
  return out;
}

// dgrad (dout cos_sin qkv q_norm k_norm rstd -> dqkv) and wgrad (dout cos_sin qkv rstd -> dq_norm+ dk_norm+)
// of one rotation with norms.
std::optional<Stage> both_rope_gradients(const Stage& a, const Stage& b) {
  if (a.op != Op::qk_rope || b.op != a.op || !same_place(a, b)) return {};
  if (a.phase != Phase::BackwardInput || b.phase != Phase::BackwardWeight) return {};
  for (const auto& [of_a, of_b] : {std::pair{0, 0}, {1, 1}, {2, 2}, {5, 3}})
    if (a.uses[size_t(of_a)].value != b.uses[size_t(of_b)].value) return {};
  Stage out = a;
  out.op = Op::qk_rope_back;
  out.uses.insert(out.uses.end(), {b.uses[4], b.uses[5]});
  return out;
}

}  // namespace

program::Program fuse(program::Program p) {
  std::vector<Stage> stages;
  // Stage::after names stages by position, and positions move.
  std::vector<program::StageId> moved(p.stages.size(), -1);
  for (size_t i = 0; i < p.stages.size(); ++i) {
    moved[i] = static_cast<program::StageId>(stages.size());
    if (i + 1 < p.stages.size()) {
      auto one = both_gradients(p.stages[i], p.stages[i + 1]);
      if (!one) one = both_rope_gradients(p.stages[i], p.stages[i + 1]);
      if (one) {
        moved[i + 1] = moved[i];
        stages.push_back(std::move(*one));
        ++i;
        continue;
      }
    }
    stages.push_back(std::move(p.stages[i]));
  }
  for (Stage& s : stages)
    if (s.after >= 0) s.after = moved[static_cast<size_t>(s.after)];
  p.stages = std::move(stages);
  return p;
}

}  // namespace pleat::schedule
