// What the router's kernels ask of their arguments, and what they cost (kernels/contract.h). The maths is in
// router.h. Choice, counters and losses: contract_choice.h.
#pragma once

#include "kernels/router/contract_choice.h"
#include "kernels/router/router_scratch.h"
#include "kernels/router/routing_checks.h"

namespace pleat::kernels {

// ---- Random numbers: jitter, router_force

// `to` is `from` with a number of (rng, token_index, column) in every element.
inline void require_noise(const Arg& from, const Arg& rng, const Arg& token_index, const Arg& to) {
  using tensor::Dtype;
  require_rank(from, 2);
  require_float(from);
  require_shape(rng, {2}, Dtype::I64);
  require_shape(token_index, {from.dim(0)}, Dtype::I64);
  require_shape(to, {from.dim(0), from.dim(1)}, from.dtype);
}

inline void require_jitter(const Arg& of, const Invocation& call) {
  const double eps = call.attr("eps");
  if (!(eps >= 0 && eps < 1)) refuse(of, "eps is {}, needed 0 <= eps < 1", eps);
  call.attr("layer");
}

inline void check(const signature::jitter::Forward<Arg>& args, const Invocation& call) {
  require_noise(args.x, args.rng, args.token_index, args.y);
  require_jitter(args.x, call);
}
inline Work work(const signature::jitter::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::jitter::BackwardInput<Arg>& args, const Invocation& call) {
  require_noise(args.dy, args.rng, args.token_index, args.dx);
  require_jitter(args.dy, call);
}
inline Work work(const signature::jitter::BackwardInput<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::router_force::Forward<Arg>& args, const Invocation& call) {
  require_noise(args.logits, args.rng, args.token_index, args.forced);
  require_experts(args.logits, args.logits.dim(1));
  for (const char* key : {"layer", "bias_std", "loaded_bias"}) call.attr(key);
}
inline Work work(const signature::router_force::Forward<Arg>&, const Invocation& call) { return moves(call); }

// ---- router_gate

inline void check(const signature::router_gate::Forward<Arg>& args, const Invocation&) {
  require_rank(args.x, 2);
  require_rank(args.w, 2);
  const int64_t tokens = args.x.dim(0), experts = args.w.dim(0);
  require_experts(args.w, experts);
  require_shape(args.w, {experts, args.x.dim(1)});
  require_shape(args.bias, {experts});
  require_same_type({&args.x, &args.w, &args.bias});
  require_shape(args.logits, {tokens, experts});
  require_router_type(args.logits, args.x);
}
inline Work work(const signature::router_gate::Forward<Arg>& args, const Invocation& call) {
  return multiplies(call, product_flops(args.x.dim(0), args.w));
}

inline void check(const signature::router_gate::BackwardInput<Arg>& args, const Invocation&) {
  require_rank(args.dlogits, 2);
  require_rank(args.w, 2);
  const int64_t tokens = args.dlogits.dim(0), experts = args.dlogits.dim(1), width = args.w.dim(1);
  require_experts(args.dlogits, experts);
  require_shape(args.w, {experts, width});
  require_shape(args.dx, {tokens, width});
  require_same_type({&args.w, &args.dx});
  require_router_type(args.dlogits, args.w);
}
inline Work work(const signature::router_gate::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, product_flops(args.dlogits.dim(0), args.w));
}

inline void check(const signature::router_gate::BackwardWeight<Arg>& args, const Invocation&) {
  require_rank(args.dlogits, 2);
  require_rank(args.x, 2);
  const int64_t tokens = args.dlogits.dim(0), experts = args.dlogits.dim(1), width = args.x.dim(1);
  require_experts(args.dlogits, experts);
  require_shape(args.x, {tokens, width});
  require_float(args.x);
  require_router_type(args.dlogits, args.x);
  require_shape(args.dw, {experts, width});
  require_stored(args.dw, args.x);
  require_shape(args.dbias, {experts}, args.dw.dtype);
}
// Sums over runs of tokens and their sum; the same for the bias.
inline Work work(const signature::router_gate::BackwardWeight<Arg>& args, const Invocation& call) {
  return multiplies(call, product_flops(args.dlogits.dim(0), args.dw), args.dbias.present ? 4 : 2);
}

// ---- Scratch: router_scratch.h says what is in it.

inline int64_t scratch_bytes(const signature::router_gate::BackwardWeight<Arg>& args, const Invocation&,
                             const Gpu&) {
  const GateShape shape{args.dlogits.dim(0), args.x.dim(1), args.dlogits.dim(1)};
  return gate_weight_bytes(shape, std::max(most_gate_runs(shape), plain_gate_runs(shape)));
}
inline int64_t scratch_bytes(const signature::router_choose::Forward<Arg>& args, const Invocation& call,
                             const Gpu&) {
  const bool balances = ChooseSettings(call).balances_keys() && !args.given.present;
  return std::max(kMaxChoiceBlocks * kChoicePartialBytes, balances ? sinkhorn_bytes(args.logits.dim(1)) : 0);
}
inline int64_t scratch_bytes(const signature::router_aux::BackwardInput<Arg>& args, const Invocation& call,
                             const Gpu&) {
  const bool by_document = aux::Settings(call).coef[aux::kSequence] != 0;
  return 8 * kNumAuxPartials * kMaxAuxBlocks +
         (by_document ? aux_document_bytes(args.logits.dim(0), args.logits.dim(1)) : 0);
}
template <AnyOf<signature::jitter::Forward<Arg>, signature::jitter::BackwardInput<Arg>,
                signature::router_force::Forward<Arg>, signature::router_gate::Forward<Arg>,
                signature::router_gate::BackwardInput<Arg>, signature::router_choose::BackwardInput<Arg>,
                signature::router_count::Forward<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
