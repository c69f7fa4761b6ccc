// What kernels that make codes of few bits ask of their arguments, and what they cost (kernels/contract.h). The maths is in
// quantize.h.
#pragma once

#include "kernels/math/coords.h"
#include "kernels/router/routing_checks.h"
#include "program/code_rows.h"
#include "tensor/recipe.h"

namespace pleat::kernels {

using tensor::Recipe;
using tensor::recipe_of;
using tensor::RecipeId;

inline Recipe recipe_of(const Invocation& call, const Arg& of) {
  const int64_t id = call.integer("recipe");
  if (id < 1 || id > 3) refuse(of, "attribute recipe is {}, needed 1 to 3", id);
  return recipe_of(static_cast<RecipeId>(id));
}

// Row codes of a matrix [rows,n] with their scales.
inline void require_row_codes(const Recipe& r, const Arg& codes, const Arg& scale, int64_t rows, int64_t n) {
  require_shape(codes, {rows, base::ceil_div(n, r.per_byte)}, r.codes);
  require_shape(scale, {rows, base::ceil_div(n, r.block)}, r.scale);
}
// Column codes with room for `rows` of them, which for routed rows only the plan knows.
inline void require_column_codes(const Recipe& r, const Arg& columns, const Arg& scale, int64_t n) {
  require_rank(columns, 2);
  require_rank(scale, 2);
  const int64_t room = columns.dim(0) * r.per_byte;
  require_shape(columns, {columns.dim(0), n}, r.codes);
  require_shape(scale, {base::ceil_div(room, r.block), n}, r.scale);
}

// What makes codes says how they fared, or does not.
template <class Args>
void require_code_counts(const Args& args, const Invocation& call) {
  if (args.counts.present != args.largest.present)
    refuse(args.counts, "counts and the largest size must be both present or both absent");
  require_coords(args.coords, call);
  if (!args.counts.present) return;
  require_shape(args.counts, {program::kNumCodeCounts}, tensor::Dtype::I64);
  require_shape(args.largest, {1}, tensor::Dtype::F64);
}

template <AnyOf<signature::quantize::Forward<Arg>, signature::quantize::BackwardInput<Arg>> Args>
void check(const Args& args, const Invocation& call) {
  const Recipe r = recipe_of(call, args.x);
  require_rank(args.x, 2);
  require_float(args.x);
  if (args.offsets.present) require_offsets(args.offsets);
  if (args.token_row.present) {
    require_rank(args.token_row, 2);
    require_shape(args.token_row, {args.x.dim(0), args.token_row.dim(1)}, tensor::Dtype::I32);
  }
  require_code_counts(args, call);
  if (args.codes.present != args.scale.present || args.columns.present != args.column_scale.present)
    refuse(args.x, "codes and their scales must be both present or both absent");
  if (!args.codes.present && !args.columns.present) refuse(args.x, "neither codes nor columns are asked for");
  if (args.columns.present && r.turns)
    refuse(args.columns, "argument 'columns': this recipe makes them of codes (turn_codes)");
  if (args.codes.present) require_row_codes(r, args.codes, args.scale, args.x.dim(0), args.x.dim(1));
  if (args.columns.present) require_column_codes(r, args.columns, args.column_scale, args.x.dim(1));
}

inline void check(const signature::turn_codes::BackwardWeight<Arg>& args, const Invocation& call) {
  const Recipe r = recipe_of(call, args.codes);
  if (!r.turns) refuse(args.codes, "this recipe makes columns of numbers, not of codes");
  require_rank(args.codes, 2);
  if (args.offsets.present) require_offsets(args.offsets);
  require_row_codes(r, args.codes, args.scale, args.codes.dim(0), args.codes.dim(1));
  require_column_codes(r, args.columns, args.column_scale, args.codes.dim(1));
}

// Codes of a weight w [out,in] or [E,out,in], or with `turned` of its transpose, and their scales.
inline void require_weight_codes(const Recipe& r, const Arg& w, bool turned, const Arg& codes,
                                 const Arg& scale) {
  const size_t rank = w.shape.size();
  if (rank != 2 && rank != 3) refuse(w, "argument '{}' has {} dimensions, needed 2 or 3", w.name, rank);
  const int64_t rows = w.dim(turned ? rank - 1 : rank - 2), n = w.dim(turned ? rank - 2 : rank - 1);
  const int64_t bytes = base::ceil_div(n, r.per_byte), down = base::ceil_div(rows, r.weight_rows),
                across = base::ceil_div(n, r.block);
  if (rank == 2) {
    require_shape(codes, {rows, bytes}, r.codes);
    require_shape(scale, {down, across}, r.scale);
  } else {
    require_shape(codes, {w.dim(0), rows, bytes}, r.codes);
    require_shape(scale, {w.dim(0), down, across}, r.scale);
  }
}

template <
    AnyOf<signature::quantize_weight::Forward<Arg>, signature::quantize_weight::BackwardInput<Arg>> Args>
void check(const Args& args, const Invocation& call) {
  require_float(args.w);
  if constexpr (requires { args.counts; }) require_code_counts(args, call);
  require_weight_codes(recipe_of(call, args.w), args.w, call.integer("turned") != 0, args.codes, args.scale);
}

// Rows [R,n] of the row codes of tokens that row_token [R] names.
template <class Args>
void require_taken_codes(const Args& args, const Invocation& call) {
  const Recipe r = recipe_of(call, args.codes);
  if (!r.turns) refuse(args.codes, "this recipe makes the codes of routed rows of their numbers");
  for (const Arg* codes : {&args.codes, &args.rows}) require_rank(*codes, 2);
  require_offsets(args.offsets);
  const int64_t n = args.codes.dim(1), rows = args.rows.dim(0);
  require_row_codes(r, args.codes, args.scale, args.codes.dim(0), n);
  require_row_codes(r, args.rows, args.rows_scale, rows, n);
  require_shape(args.row_token, {rows}, tensor::Dtype::I32);
}
inline void check(const signature::permute_codes::Forward<Arg>& args, const Invocation& call) {
  require_taken_codes(args, call);
  const int64_t rows = args.rows.dim(0);
  require_shape(args.row_slot, {rows}, tensor::Dtype::I32);
  require_rank(args.probs, 2);
  require_float(args.probs);
  require_shape(args.probs, {args.codes.dim(0), args.probs.dim(1)});
  require_shape(args.row_probs, {rows}, args.probs.dtype);
}
inline void check(const signature::permute_codes::BackwardInput<Arg>& args, const Invocation& call) {
  require_taken_codes(args, call);
}

template <AnyOf<signature::quantize::Forward<Arg>, signature::quantize::BackwardInput<Arg>,
                signature::turn_codes::BackwardWeight<Arg>, signature::quantize_weight::Forward<Arg>,
                signature::quantize_weight::BackwardInput<Arg>, signature::permute_codes::Forward<Arg>,
                signature::permute_codes::BackwardInput<Arg>>
              Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}
template <AnyOf<signature::quantize::Forward<Arg>, signature::quantize::BackwardInput<Arg>,
                signature::turn_codes::BackwardWeight<Arg>, signature::quantize_weight::Forward<Arg>,
                signature::quantize_weight::BackwardInput<Arg>, signature::permute_codes::Forward<Arg>,
                signature::permute_codes::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
