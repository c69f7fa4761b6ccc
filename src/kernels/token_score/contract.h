// What token_score asks of its arguments, and what it costs (kernels/contract.h). The rules are in
// token_score.h.
#pragma once

#include "kernels/contract.h"

namespace pleat::kernels {

inline void check(const signature::token_score::Forward<Arg>& args, const Invocation&) {
  require_rank(args.logits, 2);
  const int64_t rows = args.logits.dim(0);
  require_float(args.logits);
  require_shape(args.labels, {rows});
  require_type(args.labels, tensor::Dtype::I32);
  require_shape(args.mask, {rows});
  require_type(args.mask, tensor::Dtype::U8);
  require_shape(args.log_prob, {rows});
  require_type(args.log_prob, tensor::Dtype::F64);
  require_shape(args.best, {rows});
  require_type(args.best, tensor::Dtype::I32);
}
inline Work work(const signature::token_score::Forward<Arg>&, const Invocation& call) { return moves(call); }

// ---- Scratch: these take none.

template <AnyOf<signature::token_score::Forward<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
