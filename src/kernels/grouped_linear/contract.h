// What the kernels of the expert layers ask of their arguments, and what they cost (kernels/contract.h). The
// maths is in grouped_linear.h.
#pragma once

#include "kernels/router/routing_checks.h"
#include "kernels/swiglu/activation.h"

namespace pleat::kernels {

// ---- grouped_linear

// w [E,out,in], x [R,in], y [R,out], offsets i32[E+1]; x and y of one type.
inline void require_groups(const Arg& w, const Arg& x, const Arg& y, const Arg& offsets) {
  require_rank(w, 3);
  require_rank(x, 2);
  require_experts(w, w.dim(0));
  require_shape(x, {x.dim(0), w.dim(2)});
  require_shape(y, {x.dim(0), w.dim(1)});
  require_shape(offsets, {w.dim(0) + 1}, tensor::Dtype::I32);
  require_same_type({&x, &y});
}

// One launch for the product, one for the bias, which takes the rows `of_bias` once more (y: read and written).
inline Work group_work(const Invocation& call, const Arg& x, const Arg& w, const Arg& bias,
                       const Arg& of_bias, int times) {
  Work work = multiplies(call, product_flops(x.dim(0), w), bias.present ? 2 : 1);
  if (bias.present) work.bytes += times * moved_bytes({&of_bias, 1});
  return work;
}

inline void check(const signature::grouped_linear::Forward<Arg>& args, const Invocation&) {
  require_groups(args.w, args.x, args.y, args.offsets);
  require_shape(args.bias, {args.w.dim(0), args.w.dim(1)});
  require_same_type({&args.x, &args.w, &args.bias});
  require_shape(args.row_scale, {args.x.dim(0)});
  require_router_type(args.row_scale, args.x);
  if (args.row_scale.present && !args.bias.present)
    refuse(args.row_scale, "argument 'row_scale' needs 'bias'");
}
inline Work work(const signature::grouped_linear::Forward<Arg>& args, const Invocation& call) {
  return group_work(call, args.x, args.w, args.bias, args.y, 2);
}

inline void check(const signature::grouped_linear::BackwardInput<Arg>& args, const Invocation&) {
  require_groups(args.w, args.dx, args.dy, args.offsets);
  require_shape(args.bias, {args.w.dim(0), args.w.dim(1)});
  require_same_type({&args.dx, &args.w, &args.bias});
  require_shape(args.drow_scale, {args.dy.dim(0)});
  require_router_type(args.drow_scale, args.dy);
  if (args.bias.present != args.drow_scale.present)
    refuse(args.dy, "arguments 'bias' and 'drow_scale' must be both present or both absent");
}
inline Work work(const signature::grouped_linear::BackwardInput<Arg>& args, const Invocation& call) {
  return group_work(call, args.dy, args.w, args.bias, args.dy, 1);
}

inline void check(const signature::grouped_linear::BackwardWeight<Arg>& args, const Invocation&) {
  require_groups(args.dw, args.x, args.dy, args.offsets);
  require_stored(args.dw, args.x);
  require_shape(args.dbias, {args.dw.dim(0), args.dw.dim(1)}, args.dw.dtype);
  require_shape(args.row_scale, {args.dy.dim(0)});
  require_router_type(args.row_scale, args.x);
  if (args.row_scale.present && !args.dbias.present)
    refuse(args.row_scale, "argument 'row_scale' needs 'dbias'");
}
inline Work work(const signature::grouped_linear::BackwardWeight<Arg>& args, const Invocation& call) {
  return group_work(call, args.dy, args.dw, args.dbias, args.dy, 1);
}

// ---- expert_swiglu

// gu [R,2f] beside a [R,f], row_probs [R], offsets i32[E+1].
template <class Args>
void require_expert_rows(const Args& args, const Arg& a, const Invocation& call) {
  require_rank(a, 2);
  require_float(a);
  require_shape(args.gu, {a.dim(0), 2 * a.dim(1)}, a.dtype);
  require_shape(args.row_probs, {a.dim(0)});
  require_router_type(args.row_probs, a);
  require_offsets(args.offsets);
  require_activation(a, call);
}

inline void check(const signature::expert_swiglu::Forward<Arg>& args, const Invocation& call) {
  require_expert_rows(args, args.a, call);
}
inline Work work(const signature::expert_swiglu::Forward<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::expert_swiglu::BackwardInput<Arg>& args, const Invocation& call) {
  require_expert_rows(args, args.da, call);
  require_shape(args.dgu, {args.da.dim(0), 2 * args.da.dim(1)}, args.da.dtype);
  require_shape(args.drow_probs, {args.da.dim(0)}, args.row_probs.dtype);
}
inline Work work(const signature::expert_swiglu::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

// ---- Scratch: these take none.

template <AnyOf<signature::grouped_linear::Forward<Arg>, signature::grouped_linear::BackwardInput<Arg>,
                signature::grouped_linear::BackwardWeight<Arg>, signature::expert_swiglu::Forward<Arg>,
                signature::expert_swiglu::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
