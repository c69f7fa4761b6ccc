#include "schedule/pass/fuse.h"

#include <optional>

#include "program/edit.h"
#include "program/signature.h"

namespace pleat::schedule {
namespace {

using program::Op;
using program::Phase;
using program::Stage;
using program::Use;
namespace signature = program::signature;

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

// Both gradients of one op in one place, next to each other.
bool are_gradients(const Stage& a, const Stage& b) {
  return b.op == a.op && same_place(a, b) && a.phase == Phase::BackwardInput &&
         b.phase == Phase::BackwardWeight;
}

std::optional<Stage> both_gradients(const Stage& a, const Stage& b) {
  const auto op = norm_back(a.op);
  if (!op || !are_gradients(a, b)) return {};
  const signature::rmsnorm::BackwardInput<Use> input(a.uses);
  const signature::rmsnorm::BackwardWeight<Use> weight(b.uses);
  if (input.dy != weight.dy || input.x != weight.x || input.rstd != weight.rstd) return {};
  Stage out = a;
  out.op = *op;
  out.uses = {input.dy, input.x, input.w, input.rstd, input.dresidual, input.dx, weight.dw};
  return out;
}

// Of one rotation with norms.
std::optional<Stage> both_rope_gradients(const Stage& a, const Stage& b) {
  if (a.op != Op::qk_rope || !are_gradients(a, b)) return {};
  const signature::qk_rope::BackwardInput<Use> input(a.uses);
  const signature::qk_rope::BackwardWeight<Use> weight(b.uses);
  if (input.dout != weight.dout || input.cos_sin != weight.cos_sin || input.qkv != weight.qkv ||
      input.rstd != weight.rstd)
    return {};
  Stage out = a;
  out.op = Op::qk_rope_back;
  out.uses = {input.dout, input.cos_sin, input.qkv,      input.q_norm,  input.k_norm,
              input.rstd, input.dqkv,    weight.dq_norm, weight.dk_norm};
  return out;
}

}  // namespace

program::Program fuse(program::Program p) {
  program::Edit edit(std::move(p));
  for (program::StageId s = 0; s + 1 < edit.num_stages(); ++s) {
    auto one = both_gradients(edit[s], edit[s + 1]);
    if (!one) one = both_rope_gradients(edit[s], edit[s + 1]);
    if (!one) continue;
    edit.replace(s, s + 1, std::move(*one));
    ++s;
  }
  return edit.apply();
}

}  // namespace pleat::schedule
