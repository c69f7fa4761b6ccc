#include "schedule/pass/fuse.h"

#include <optional>

#include "program/edit.h"

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
