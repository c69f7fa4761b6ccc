// What the kernels of windows ask of their arguments, and what they cost (kernels/contract.h). windows.h says what they
// do.
#pragma once

#include "kernels/dispatch/contract.h"

namespace pleat::kernels {

namespace windows {

// Ranks whose windows one launch of a GPU can be told.
constexpr int kMaxRanks = program::kMaxWindowRanks;

inline int64_t expert_ranks(const Arg& all_tokens) { return all_tokens.dim(1) - 1; }

// all_tokens [n, P+1] of this call's group, token_slot [T,P], coords.
inline void require_group(const Arg& all_tokens, const Arg& coords, const Invocation& call) {
  require_rank(all_tokens, 2);
  require_type(all_tokens, tensor::Dtype::I32);
  require_places(coords);
  const int64_t copies = call.integer("copies"), ranks = all_tokens.dim(0);
  if (copies < 1 || expert_ranks(all_tokens) * copies != ranks)
    refuse(all_tokens, "{} ranks with {} copies of {} expert ranks", ranks, copies, expert_ranks(all_tokens));
}
inline void require_sms(const Arg& of, const Invocation& call) {
  if (call.integer("sms") < 0) refuse(of, "sms is {}, needed 0 (all) or more", call.integer("sms"));
}
inline void require_met(const Arg& met) { require_shape(met, {1}, tensor::Dtype::U8); }
inline void require_lists(const Arg& lists, int64_t tokens) {
  require_rank(lists, 2);
  require_shape(lists, {tokens, lists.dim(1)}, tensor::Dtype::I32);
}
inline void require_matrix(const Arg& rows) {
  require_rank(rows, 2);
  require_float(rows);
}

}  // namespace windows

inline void check(const signature::send_plan::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_rank(args.token_row, 2);
  require_type(args.token_row, Dtype::I32);
  require_like(args.idx, args.token_row);
  require_rank(args.all_offsets, 2);
  const int64_t ranks = args.all_offsets.dim(0), experts = require_group(args.all_offsets, call, ranks);
  const int64_t expert_ranks = ranks / call.integer("copies");
  require_shape(args.all_offsets, {ranks, experts + 1}, Dtype::I32);
  require_places(args.coords);
  require_shape(args.token_offsets, {expert_ranks + 1}, Dtype::I32);
  require_shape(args.token_slot, {args.token_row.dim(0), expert_ranks}, Dtype::I32);
  require_shape(args.row_base, {experts}, Dtype::I32);
  require_shape(args.expert_offsets, {call.integer("experts_per_rank") + 1}, Dtype::I32);
}
inline Work work(const signature::send_plan::Forward<Arg>&, const Invocation& call) { return moves(call, 2); }
// Tokens of every chunk of them to every expert rank.
constexpr int64_t kSendChunk = 256;  // tokens
inline int64_t scratch_bytes(const signature::send_plan::Forward<Arg>& args, const Invocation&, const Gpu&) {
  return 4 * base::ceil_div(args.token_row.dim(0), kSendChunk) * args.token_slot.dim(1);
}

inline void check(const signature::push_rows::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  windows::require_matrix(args.x);
  windows::require_group(args.all_tokens, args.coords, call);
  windows::require_sms(args.x, call);
  const int64_t tokens = args.x.dim(0);
  require_rank(args.idx, 2);
  require_shape(args.idx, {tokens, args.idx.dim(1)}, Dtype::I32);
  require_shape(args.probs, {tokens, args.idx.dim(1)});
  require_router_type(args.probs, args.x);
  require_like(args.token_row, args.idx);
  require_offsets(args.offsets);
  require_shape(args.row_base, {args.offsets.dim(0) - 1}, Dtype::I32);
  require_rank(args.row_token, 1);
  require_type(args.row_token, Dtype::I32);
  require_shape(args.token_slot, {tokens, windows::expert_ranks(args.all_tokens)}, Dtype::I32);
  require_rank(args.rows, 2);
  require_shape(args.rows, {args.rows.dim(0), args.x.dim(1)}, args.x.dtype);
  require_rank(args.row_probs, 1);
  require_type(args.row_probs, args.probs.dtype);
  require_shape(args.source_row, {args.row_probs.dim(0)}, Dtype::I32);
  windows::require_lists(args.token_rows, args.rows.dim(0));
}
inline void check(const signature::push_rows::BackwardInput<Arg>& args, const Invocation& call) {
  windows::require_matrix(args.x);
  windows::require_group(args.all_tokens, args.coords, call);
  windows::require_sms(args.x, call);
  require_shape(args.token_slot, {args.x.dim(0), windows::expert_ranks(args.all_tokens)}, tensor::Dtype::I32);
  require_rank(args.rows, 2);
  require_shape(args.rows, {args.rows.dim(0), args.x.dim(1)}, args.x.dtype);
}

inline void check(const signature::place_rows::Forward<Arg>& args, const Invocation&) {
  using tensor::Dtype;
  windows::require_matrix(args.sent);
  require_offsets(args.offsets);
  require_rank(args.rows, 2);
  require_shape(args.rows, {args.rows.dim(0), args.sent.dim(1)}, args.sent.dtype);
  require_shape(args.sent_probs, {args.rows.dim(0)});
  require_router_type(args.sent_probs, args.sent);
  require_shape(args.sent_source, {args.rows.dim(0)}, Dtype::I32);
  windows::require_lists(args.sent_lists, args.sent.dim(0));
  windows::require_met(args.met);
  require_like(args.row_probs, args.sent_probs);
  require_like(args.source_row, args.sent_source);
  require_like(args.token_rows, args.sent_lists);
}
inline void check(const signature::place_rows::BackwardInput<Arg>& args, const Invocation&) {
  windows::require_matrix(args.sent);
  require_offsets(args.offsets);
  require_rank(args.rows, 2);
  require_shape(args.rows, {args.rows.dim(0), args.sent.dim(1)}, args.sent.dtype);
  require_shape(args.source_row, {args.rows.dim(0)}, tensor::Dtype::I32);
  windows::require_met(args.met);
}

template <AnyOf<signature::push_sums::Forward<Arg>, signature::push_sums::BackwardInput<Arg>> Args>
void check(const Args& args, const Invocation& call) {
  windows::require_matrix(args.rows);
  windows::require_group(args.all_tokens, args.coords, call);
  windows::require_sms(args.rows, call);
  require_rank(args.token_rows, 2);
  windows::require_lists(args.token_rows, args.token_rows.dim(0));
  require_rank(args.sums, 2);
  require_shape(args.sums, {args.sums.dim(0), args.rows.dim(1)}, args.rows.dtype);
  if constexpr (std::same_as<Args, signature::push_sums::BackwardInput<Arg>>) {
    require_shape(args.row_probs, {args.rows.dim(0)});
    require_router_type(args.row_probs, args.rows);
    require_shape(args.prob_sums, {args.sums.dim(0), args.token_rows.dim(1)}, args.row_probs.dtype);
  }
}

inline void check(const signature::add_sums::Forward<Arg>& args, const Invocation&) {
  using tensor::Dtype;
  windows::require_matrix(args.sums);
  require_rank(args.token_slot, 2);
  require_type(args.token_slot, Dtype::I32);
  require_shape(args.token_offsets, {args.token_slot.dim(1) + 1}, Dtype::I32);
  windows::require_met(args.met);
  require_shape(args.y, {args.token_slot.dim(0), args.sums.dim(1)}, args.sums.dtype);
}
inline void check(const signature::add_sums::BackwardInput<Arg>& args, const Invocation&) {
  using tensor::Dtype;
  windows::require_matrix(args.sums);
  require_rank(args.token_slot, 2);
  const int64_t tokens = args.token_slot.dim(0);
  require_type(args.token_slot, Dtype::I32);
  require_shape(args.token_offsets, {args.token_slot.dim(1) + 1}, Dtype::I32);
  windows::require_met(args.met);
  require_rank(args.prob_sums, 2);
  require_shape(args.prob_sums, {args.sums.dim(0), args.prob_sums.dim(1)});
  require_router_type(args.prob_sums, args.sums);
  require_rank(args.idx, 2);
  require_shape(args.idx, {tokens, args.idx.dim(1)}, Dtype::I32);
  require_like(args.token_row, args.idx);
  require_shape(args.dx, {tokens, args.sums.dim(1)}, args.sums.dtype);
  require_shape(args.dprobs, {tokens, args.idx.dim(1)}, args.prob_sums.dtype);
}

template <AnyOf<signature::push_rows::Forward<Arg>, signature::push_rows::BackwardInput<Arg>,
                signature::place_rows::Forward<Arg>, signature::place_rows::BackwardInput<Arg>,
                signature::push_sums::Forward<Arg>, signature::push_sums::BackwardInput<Arg>,
                signature::add_sums::Forward<Arg>, signature::add_sums::BackwardInput<Arg>>
              Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}
template <AnyOf<signature::push_rows::Forward<Arg>, signature::push_rows::BackwardInput<Arg>,
                signature::place_rows::Forward<Arg>, signature::place_rows::BackwardInput<Arg>,
                signature::push_sums::Forward<Arg>, signature::push_sums::BackwardInput<Arg>,
                signature::add_sums::Forward<Arg>, signature::add_sums::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
