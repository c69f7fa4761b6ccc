// What the gated activation asks of its arguments, and what it costs (kernels/contract.h). The maths is in
// swiglu.h.
#pragma once

#include "kernels/swiglu/activation.h"

namespace pleat::kernels {

inline void check(const signature::swiglu::Forward<Arg>& args, const Invocation& call) {
  require_rank(args.a, 2);
  require_shape(args.gu, {args.a.dim(0), 2 * args.a.dim(1)});
  require_same_type({&args.gu, &args.a});
  require_activation(args.gu, call);
}
inline Work work(const signature::swiglu::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::swiglu::BackwardInput<Arg>& args, const Invocation& call) {
  require_rank(args.da, 2);
  require_shape(args.gu, {args.da.dim(0), 2 * args.da.dim(1)});
  require_shape(args.dgu, {args.da.dim(0), 2 * args.da.dim(1)});
  require_same_type({&args.da, &args.gu, &args.dgu});
  require_activation(args.gu, call);
}
inline Work work(const signature::swiglu::BackwardInput<Arg>&, const Invocation& call) { return moves(call); }

// ---- Scratch: these take none.

template <AnyOf<signature::swiglu::Forward<Arg>, signature::swiglu::BackwardInput<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
