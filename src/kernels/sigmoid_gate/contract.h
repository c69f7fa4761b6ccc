// What the gate of shared experts asks of its arguments, and what it costs (kernels/contract.h). The maths
// is in sigmoid_gate.h.
#pragma once

#include "kernels/cuda/scratch.h"

namespace pleat::kernels {

inline void check(const signature::sigmoid_gate::Forward<Arg>& args, const Invocation&) {
  require_rank(args.x, 2);
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  require_shape(args.w, {width});
  require_shape(args.y, {rows, width});
  require_shape(args.out, {rows, width});
  require_same_type({&args.x, &args.w, &args.y, &args.out});
}
inline Work work(const signature::sigmoid_gate::Forward<Arg>&, const Invocation& call) { return moves(call); }

// What both gradients read.
template <class Args>
void check_gate_inputs(const Args& args) {
  require_rank(args.dout, 2);
  const int64_t rows = args.dout.dim(0), width = args.dout.dim(1);
  require_shape(args.x, {rows, width});
  require_shape(args.w, {width});
  require_shape(args.y, {rows, width});
  require_same_type({&args.dout, &args.x, &args.w, &args.y});
}

inline void check(const signature::sigmoid_gate::BackwardInput<Arg>& args, const Invocation&) {
  check_gate_inputs(args);
  require_shape(args.dx, {args.dout.dim(0), args.dout.dim(1)});
  require_shape(args.dy, {args.dout.dim(0), args.dout.dim(1)});
  require_same_type({&args.dout, &args.dx, &args.dy});
}
inline Work work(const signature::sigmoid_gate::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::sigmoid_gate::BackwardWeight<Arg>& args, const Invocation&) {
  check_gate_inputs(args);
  require_shape(args.dw, {args.dout.dim(1)});
  require_stored(args.dw, args.dout);
}
inline Work work(const signature::sigmoid_gate::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}
// Partial sums; where no team holds a row, a coefficient per row before them, f32.
inline int64_t gate_coefficient_bytes(int64_t rows) { return scratch_part(rows * 4); }
inline int64_t scratch_bytes(const signature::sigmoid_gate::BackwardWeight<Arg>& args, const Invocation&,
                             const Gpu& gpu) {
  const int64_t rows = args.dout.dim(0), width = args.dout.dim(1);
  return std::max(gate_coefficient_bytes(rows) + column_sum_bytes(rows, width),
                  team_sum_bytes(rows, width, args.dout.dtype, gpu));
}

// ---- Scratch: these take none.

template <AnyOf<signature::sigmoid_gate::Forward<Arg>, signature::sigmoid_gate::BackwardInput<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
