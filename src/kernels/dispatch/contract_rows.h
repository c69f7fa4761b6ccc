// Contracts of the kernels that move routed rows: permute, combine, and both over ranks (contract.h).
#pragma once

#include "kernels/router/routing_checks.h"

namespace pleat::kernels {

// y [T,w] of the rows [R,w] that token_row [T,k] names.
inline void require_row_sum(const Arg& rows, const Arg& token_row, const Arg& y) {
  require_rank(rows, 2);
  require_float(rows);
  require_rank(token_row, 2);
  require_type(token_row, tensor::Dtype::I32);
  require_shape(y, {token_row.dim(0), rows.dim(1)}, rows.dtype);
}

// Rows [R,w] of the tokens [T,w] that row_token [R] names; the plan the other way is token_row [T,k].
template <class Args>
void require_row_copy(const Args& args, const Arg& tokens, const Arg& rows) {
  using tensor::Dtype;
  require_rank(tokens, 2);
  require_float(tokens);
  require_offsets(args.offsets);
  require_rank(rows, 2);
  require_shape(rows, {rows.dim(0), tokens.dim(1)}, tokens.dtype);
  require_shape(args.row_token, {rows.dim(0)}, Dtype::I32);
  require_rank(args.token_row, 2);
  require_shape(args.token_row, {tokens.dim(0), args.token_row.dim(1)}, Dtype::I32);
}

// The gradients of permute, of rows of this rank or of several.
template <class Args>
void require_permute_gradient(const Args& args) {
  require_rank(args.drows, 2);
  require_float(args.drows);
  require_shape(args.drow_probs, {args.drows.dim(0)});
  require_router_type(args.drow_probs, args.drows);
  require_row_sum(args.drows, args.token_row, args.dx);
  require_shape(args.dprobs, {args.token_row.dim(0), args.token_row.dim(1)}, args.drow_probs.dtype);
}

// Rows that came back from the ranks of a group, `copies` of each row of a plan of `offsets`.
inline void require_returned(const Arg& rows, const Arg& token_row, const Arg& offsets,
                             const Invocation& call) {
  require_rank(rows, 2);
  require_rank(token_row, 2);
  require_offsets(offsets);
  const int64_t per_rank = call.integer("experts_per_rank"), copies = call.integer("copies");
  if (copies < 1) refuse(offsets, "copies is {}, needed 1 or more", copies);
  if (per_rank < 1 || (offsets.dim(0) - 1) % per_rank != 0)
    refuse(offsets, "{} experts with {} per rank: needed a multiple", offsets.dim(0) - 1, per_rank);
  if (token_row.dim(1) > kMaxExperts)
    refuse(token_row, "{} choices per token, needed at most {}", token_row.dim(1), kMaxExperts);
  require_index_range(token_row, token_row.size(), rows.dim(0));
}

inline void check(const signature::permute::Forward<Arg>& args, const Invocation&) {
  require_row_copy(args, args.x, args.rows);
  const int64_t rows = args.rows.dim(0);
  require_shape(args.row_slot, {rows}, tensor::Dtype::I32);
  require_shape(args.probs, {args.x.dim(0), args.token_row.dim(1)});
  require_router_type(args.probs, args.x);
  require_shape(args.row_probs, {rows}, args.probs.dtype);
}
inline Work work(const signature::permute::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::permute::BackwardInput<Arg>& args, const Invocation&) {
  require_permute_gradient(args);
}
inline Work work(const signature::permute::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::combine::Forward<Arg>& args, const Invocation&) {
  require_row_sum(args.rows, args.token_row, args.y);
  for (const Arg* addend : {&args.residual, &args.shared})
    require_shape(*addend, {args.y.dim(0), args.y.dim(1)}, args.rows.dtype);
}
inline Work work(const signature::combine::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::combine::BackwardInput<Arg>& args, const Invocation&) {
  require_row_copy(args, args.dy, args.drows);
}
inline Work work(const signature::combine::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::combine_ranks::Forward<Arg>& args, const Invocation& call) {
  require_returned(args.rows, args.token_row, args.offsets, call);
  require_row_sum(args.rows, args.token_row, args.y);
}
inline Work work(const signature::combine_ranks::Forward<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::permute_ranks::BackwardInput<Arg>& args, const Invocation& call) {
  require_returned(args.drows, args.token_row, args.offsets, call);
  require_permute_gradient(args);
}
inline Work work(const signature::permute_ranks::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

}  // namespace pleat::kernels
