// What the kernels of the norm ask of their arguments, and what they cost (kernels/contract.h). The maths is in
// rmsnorm.h.
#pragma once

#include "kernels/cuda/scratch.h"

namespace pleat::kernels {

inline void check(const signature::rmsnorm::Forward<Arg>& args, const Invocation& call) {
  require_rank(args.x, 2);
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  require_shape(args.w, {width});
  require_shape(args.y, {rows, width});
  require_shape(args.rstd, {rows});
  require_same_type({&args.x, &args.w, &args.y});
  require_type(args.rstd, wide_of(args.x.dtype));
  call.attr("eps");
}
inline Work work(const signature::rmsnorm::Forward<Arg>&, const Invocation& call) { return moves(call); }

// Of a gradient with respect to x, alone or beside that of w.
template <class Args>
void check_norm_gradient(const Args& args) {
  require_rank(args.dy, 2);
  const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
  require_shape(args.x, {rows, width});
  require_shape(args.w, {width});
  require_shape(args.rstd, {rows});
  require_shape(args.dresidual, {rows, width});
  require_shape(args.dx, {rows, width});
  require_same_type({&args.dy, &args.x, &args.w, &args.dresidual, &args.dx});
  require_type(args.rstd, wide_of(args.dy.dtype));
}

inline void check(const signature::rmsnorm::BackwardInput<Arg>& args, const Invocation&) {
  check_norm_gradient(args);
}
inline Work work(const signature::rmsnorm::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::rmsnorm::BackwardWeight<Arg>& args, const Invocation&) {
  require_rank(args.dy, 2);
  const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
  require_shape(args.x, {rows, width});
  require_shape(args.rstd, {rows});
  require_shape(args.dw, {width});
  require_same_type({&args.dy, &args.x});
  require_type(args.rstd, wide_of(args.dy.dtype));
  require_stored(args.dw, args.dy);
}
inline Work work(const signature::rmsnorm::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}
inline int64_t scratch_bytes(const signature::rmsnorm::BackwardWeight<Arg>& args, const Invocation&,
                             const Gpu&) {
  return column_sum_bytes(args.dy.dim(0), args.dy.dim(1));
}

inline void check(const signature::rmsnorm_back::BackwardInput<Arg>& args, const Invocation&) {
  check_norm_gradient(args);
  require_shape(args.dw, {args.dy.dim(1)});
  require_stored(args.dw, args.dy);
}
inline Work work(const signature::rmsnorm_back::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call, 2);
}
// A row that no team can hold takes the way of the two phases.
inline int64_t scratch_bytes(const signature::rmsnorm_back::BackwardInput<Arg>& args, const Invocation&,
                             const Gpu& gpu) {
  const int64_t rows = args.dy.dim(0), width = args.dy.dim(1);
  return std::max(column_sum_bytes(rows, width), team_sum_bytes(rows, width, args.dy.dtype, gpu));
}

// ---- Scratch: these take none.

template <AnyOf<signature::rmsnorm::Forward<Arg>, signature::rmsnorm::BackwardInput<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
