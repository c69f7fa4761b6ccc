// What the kernels of dispatch ask of their arguments, and what they cost (kernels/contract.h). dispatch.h says
// what they do. Plans are here, the rows themselves in contract_rows.h.
#pragma once

#include "base/checked.h"
#include "kernels/dispatch/contract_rows.h"
#include "kernels/router/routing_checks.h"

namespace pleat::kernels {

// A plan for `choices` [T,k] of `experts`: offsets, row_token, row_slot, token_row.
template <class Args>
void require_plan(const Args& args, const Arg& choices, int64_t experts) {
  using tensor::Dtype;
  const int64_t tokens = choices.dim(0), top_k = choices.dim(1);
  require_shape(args.offsets, {experts + 1}, Dtype::I32);
  require_rank(args.row_token, 1);
  require_type(args.row_token, Dtype::I32);
  const int64_t rows = args.row_token.dim(0);
  require_shape(args.row_slot, {rows}, Dtype::I32);
  require_shape(args.token_row, {tokens, top_k}, Dtype::I32);
  require_index_range(args.row_token, tokens * top_k, rows);
}

// An expert over its limit keeps its largest probabilities, or its first tokens.
inline void require_policy(const Arg& of, const Invocation& call) {
  const int64_t policy = call.integer("policy");
  if (policy != 0 && policy != 1) refuse(of, "policy is {}, needed 0 or 1", policy);
}

// A group of `ranks`, each with attr experts_per_rank experts, attr copies of each. Returns the experts of all.
inline int64_t require_group(const Arg& of, const Invocation& call, int64_t ranks) {
  const int64_t per_rank = call.integer("experts_per_rank"), copies = call.integer("copies");
  if (copies < 1 || ranks < 1 || ranks % copies != 0)
    refuse(of, "{} ranks with {} copies: needed a positive multiple", ranks, copies);
  if (per_rank < 1 || per_rank > kMaxExperts)
    refuse(of, "{} experts per rank, needed 1 to {}", per_rank, kMaxExperts);
  return ranks / copies * per_rank;
}

// A rank's places, of which these kernels look at that in its dispatch group.
inline void require_places(const Arg& coords) {
  require_shape(coords, {program::kNumGroups}, tensor::Dtype::I64);
}

inline void check(const signature::dispatch_plan::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  const int64_t experts = call.integer("experts"), capacity = call.integer("capacity");
  require_experts(args.idx, experts);
  if (capacity < 0) refuse(args.idx, "capacity is {}, needed 0 (none) or more", capacity);
  if (call.integer("pad") != 0 && capacity == 0) refuse(args.idx, "padding needs a capacity");
  require_policy(args.idx, call);
  require_rank(args.idx, 2);
  const int64_t tokens = args.idx.dim(0), top_k = call.integer("top_k");
  require_shape(args.idx, {tokens, top_k}, Dtype::I32);
  require_shape(args.probs, {tokens, top_k});
  require_float(args.probs);
  require_shape(args.piece, {tokens}, Dtype::I32);
  if (args.piece.present && (call.integer("pieces") < 1 || experts * call.integer("pieces") > kMaxExperts))
    refuse(args.piece, "{} experts in {} pieces, at most {} together", experts, call.integer("pieces"),
           kMaxExperts);
  require_plan(args, args.idx, experts);
  require_shape(args.dropped, {1}, Dtype::I64);
}
// Count, place; with a capacity choices are sorted and then selected.
inline Work work(const signature::dispatch_plan::Forward<Arg>&, const Invocation& call) {
  return moves(call, call.integer("capacity") > 0 ? 3 : 2);
}

inline void check(const signature::gather_plan::Forward<Arg>& args, const Invocation& call) {
  const int64_t ranks = call.integer("ranks"), capacity = call.integer("capacity");
  require_group(args.idx, call, ranks);
  if (call.integer("pad") != 0 && capacity < 1)
    refuse(args.idx, "padding needs a capacity, got {}", capacity);
  require_rank(args.idx, 2);
  require_type(args.idx, tensor::Dtype::I32);
  const int64_t tokens = args.idx.dim(0);
  if (tokens % ranks != 0) refuse(args.idx, "{} tokens of {} ranks: needed a multiple", tokens, ranks);
  require_shape(args.kept, {tokens, args.idx.dim(1)}, tensor::Dtype::I32);
  require_places(args.coords);
  require_plan(args, args.idx, call.integer("experts_per_rank"));
}
inline Work work(const signature::gather_plan::Forward<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

inline void check(const signature::receive_plan::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_rank(args.all_offsets, 2);
  require_rank(args.source_row, 1);
  const int64_t ranks = args.all_offsets.dim(0), rows = args.source_row.dim(0);
  require_shape(args.all_offsets, {ranks, require_group(args.all_offsets, call, ranks) + 1}, Dtype::I32);
  require_places(args.coords);
  require_shape(args.offsets, {call.integer("experts_per_rank") + 1}, Dtype::I32);
  require_type(args.source_row, Dtype::I32);
  require_shape(args.sorted_row, {rows}, Dtype::I32);
  require_index_range(args.source_row, 0, rows);
}
inline Work work(const signature::receive_plan::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::padded_plan::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_rank(args.all_offsets, 2);
  const int64_t ranks = args.all_offsets.dim(0), part = call.integer("part");
  if (part < 1) refuse(args.all_offsets, "part is {}, needed 1 or more", part);
  require_shape(args.all_offsets, {ranks, require_group(args.all_offsets, call, ranks) + 1}, Dtype::I32);
  require_places(args.coords);
  require_shape(args.offsets, {call.integer("experts_per_rank") + 1}, Dtype::I32);
  require_rank(args.source_row, 1);
  require_type(args.source_row, Dtype::I32);
  require_shape(args.sorted_row, {ranks * part}, Dtype::I32);
  require_shape(args.send_row, {ranks * part}, Dtype::I32);
  require_rank(args.returned_row, 1);
  require_type(args.returned_row, Dtype::I32);
  require_index_range(args.source_row, ranks * part, args.source_row.dim(0));
}
inline Work work(const signature::padded_plan::Forward<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

inline void check(const signature::trim_plan::Forward<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_rank(args.probs, 2);
  require_float(args.probs);
  require_rank(args.all_offsets, 2);
  const int64_t ranks = args.all_offsets.dim(0), budget = call.integer("budget");
  const int64_t experts = require_group(args.all_offsets, call, ranks);
  if (budget < 1) refuse(args.probs, "budget is {}, needed 1 or more", budget);
  require_policy(args.probs, call);
  require_places(args.coords);
  require_shape(args.all_offsets, {ranks, experts + 1}, Dtype::I32);
  require_plan(args, args.probs, experts);
  require_shape(args.dropped, {1}, Dtype::I64);
  require_shape(args.overflow, {1}, Dtype::I64);
  if (args.overflow.present && args.overflow.into() != Into::Accumulate)
    refuse(args.overflow, "'overflow' keeps the largest of a step: it cannot be overwritten");
}
// What every expert keeps, the rows as they were, the rows that stay.
inline Work work(const signature::trim_plan::Forward<Arg>&, const Invocation& call) { return moves(call, 3); }

// ---- Scratch, all of it i32.

// A stable counting sort of choices into buckets (counting_sort.cuh): what every chunk of choices has of every
// bucket, and three numbers per bucket.
constexpr int64_t kSortedChunk = 1024;  // choices
inline int64_t sort_chunks(int64_t choices) {
  return std::max<int64_t>(1, base::ceil_div(choices, kSortedChunk));
}
inline int64_t sort_bytes(int64_t choices, int64_t buckets) {
  return 4 * buckets * (sort_chunks(choices) + 3);
}

// With a capacity the sorted choices too.
inline int64_t scratch_bytes(const signature::dispatch_plan::Forward<Arg>& args, const Invocation& call,
                             const Gpu&) {
  const int64_t buckets = call.integer("experts") * (args.piece.present ? call.integer("pieces") : 1);
  return sort_bytes(args.idx.size(), buckets) + (call.integer("capacity") > 0 ? 4 * args.idx.size() : 0);
}
// With padding every expert and source is a bucket.
inline int64_t gather_buckets(const Invocation& call) {
  return call.integer("experts_per_rank") * (call.integer("pad") != 0 ? call.integer("ranks") : 1);
}
inline int64_t scratch_bytes(const signature::gather_plan::Forward<Arg>& args, const Invocation& call,
                             const Gpu&) {
  return sort_bytes(args.idx.size(), gather_buckets(call));
}
// Counts of all ranks, offsets and choices as they were, and whether any expert is cut.
inline int64_t scratch_bytes(const signature::trim_plan::Forward<Arg>& args, const Invocation&, const Gpu&) {
  const int64_t ranks = args.all_offsets.dim(0), offsets = args.offsets.dim(0);
  return 4 * (ranks * (offsets - 1) + offsets + args.row_token.dim(0) + 1);
}
template <AnyOf<signature::receive_plan::Forward<Arg>, signature::padded_plan::Forward<Arg>,
                signature::permute::Forward<Arg>, signature::permute::BackwardInput<Arg>,
                signature::combine::Forward<Arg>, signature::combine::BackwardInput<Arg>,
                signature::combine_ranks::Forward<Arg>, signature::permute_ranks::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
