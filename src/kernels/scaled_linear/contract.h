// What products of codes ask of their arguments, and what they cost (kernels/contract.h). The maths is in scaled_linear.h.
#pragma once

#include "kernels/quantize/contract.h"

namespace pleat::kernels {

// Codes x [rows, depth/p] times codes w [.., width, depth/p] of a weight.
inline void require_codes_product(const Recipe& r, const Arg& x, const Arg& x_scale, const Arg& w,
                                  const Arg& w_scale, const Arg& y) {
  require_rank(y, 2);
  require_float(y);
  require_rank(x, 2);
  require_type(x, r.codes);
  require_type(w, r.codes);
  const size_t rank = w.shape.size();
  if (rank != 2 && rank != 3) refuse(w, "argument '{}' has {} dimensions, needed 2 or 3", w.name, rank);
  const int64_t rows = x.dim(0), depth = x.dim(1), width = w.dim(rank - 2);
  const int64_t across = base::ceil_div(depth * r.per_byte, r.block),
                down = base::ceil_div(width, r.weight_rows);
  require_shape(x_scale, {rows, across}, r.scale);
  require_shape(y, {rows, width});
  if (rank == 2) {
    require_shape(w, {width, depth});
    require_shape(w_scale, {down, across}, r.scale);
  } else {
    require_shape(w, {w.dim(0), width, depth});
    require_shape(w_scale, {w.dim(0), down, across}, r.scale);
  }
}
inline double codes_flops(const Recipe& r, int64_t rows, const Arg& w) {
  return product_flops(rows, w) * static_cast<double>(r.per_byte);
}

inline void check(const signature::scaled_linear::Forward<Arg>& args, const Invocation& call) {
  require_codes_product(recipe_of(call, args.x), args.x, args.x_scale, args.w, args.w_scale, args.y);
  require_rank(args.w, 2);
  require_shape(args.bias, {args.y.dim(1)}, args.y.dtype);
  if (args.residual.present) require_like(args.residual, args.y);
}
inline Work work(const signature::scaled_linear::Forward<Arg>& args, const Invocation& call) {
  return multiplies(call, codes_flops(recipe_of(call, args.x), args.x.dim(0), args.w));
}

inline void check(const signature::scaled_linear::BackwardInput<Arg>& args, const Invocation& call) {
  require_codes_product(recipe_of(call, args.dy), args.dy, args.dy_scale, args.w, args.w_scale, args.dx);
  require_rank(args.w, 2);
}
inline Work work(const signature::scaled_linear::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, codes_flops(recipe_of(call, args.dy), args.dy.dim(0), args.w));
}

inline void check(const signature::scaled_grouped_linear::Forward<Arg>& args, const Invocation& call) {
  require_codes_product(recipe_of(call, args.x), args.x, args.x_scale, args.w, args.w_scale, args.y);
  require_rank(args.w, 3);
  require_experts(args.w, args.w.dim(0));
  require_shape(args.offsets, {args.w.dim(0) + 1}, tensor::Dtype::I32);
}
inline Work work(const signature::scaled_grouped_linear::Forward<Arg>& args, const Invocation& call) {
  return multiplies(call, codes_flops(recipe_of(call, args.x), args.x.dim(0), args.w));
}

inline void check(const signature::scaled_grouped_linear::BackwardInput<Arg>& args, const Invocation& call) {
  require_codes_product(recipe_of(call, args.dy), args.dy, args.dy_scale, args.w, args.w_scale, args.dx);
  require_rank(args.w, 3);
  require_experts(args.w, args.w.dim(0));
  require_shape(args.offsets, {args.w.dim(0) + 1}, tensor::Dtype::I32);
}
inline Work work(const signature::scaled_grouped_linear::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, codes_flops(recipe_of(call, args.dy), args.dy.dim(0), args.w));
}

template <AnyOf<signature::scaled_linear::BackwardWeight<Arg>,
                signature::scaled_grouped_linear::BackwardWeight<Arg>>
              Args>
void check(const Args& args, const Invocation& call) {
  constexpr bool kGrouped = std::same_as<Args, signature::scaled_grouped_linear::BackwardWeight<Arg>>;
  const Recipe r = recipe_of(call, args.dy);
  require_rank(args.dw, kGrouped ? 3 : 2);
  const size_t rank = args.dw.shape.size();
  require_column_codes(r, args.dy, args.dy_scale, args.dw.dim(rank - 2));
  require_column_codes(r, args.x, args.x_scale, args.dw.dim(rank - 1));
  if (args.x.dim(0) != args.dy.dim(0))
    refuse(args.x, "columns of {} and of {} rows do not fit", args.x.dim(0), args.dy.dim(0));
  if constexpr (kGrouped) {
    require_experts(args.dw, args.dw.dim(0));
    require_shape(args.offsets, {args.dw.dim(0) + 1}, tensor::Dtype::I32);
  }
}
template <AnyOf<signature::scaled_linear::BackwardWeight<Arg>,
                signature::scaled_grouped_linear::BackwardWeight<Arg>>
              Args>
Work work(const Args& args, const Invocation& call) {
  return multiplies(call, codes_flops(recipe_of(call, args.dy), args.dy.dim(0), args.dw));
}

// Scratch: these take none.
template <AnyOf<signature::scaled_linear::Forward<Arg>, signature::scaled_linear::BackwardInput<Arg>,
                signature::scaled_linear::BackwardWeight<Arg>, signature::scaled_grouped_linear::Forward<Arg>,
                signature::scaled_grouped_linear::BackwardInput<Arg>,
                signature::scaled_grouped_linear::BackwardWeight<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
