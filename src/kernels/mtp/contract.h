// What multi-token prediction's inputs ask of their arguments, and what they cost (kernels/contract.h). The
// rules are in mtp.h.
#pragma once

#include "kernels/contract.h"

namespace pleat::kernels {

inline void check(const signature::mtp_shift::Forward<Arg>& args, const Invocation& call) {
  require_rank(args.tokens, 1);
  const int64_t rows = args.tokens.dim(0), depth = call.integer("depth"), seq_len = call.integer("seq_len");
  if (depth < 1) refuse(args.tokens, "depth is {}, needed 1 or more", depth);
  if (seq_len < 1 || rows % seq_len != 0)
    refuse(args.tokens, "{} rows are not whole sequences of {}", rows, seq_len);
  for (const Arg* ids : {&args.tokens, &args.labels, &args.doc_start, &args.ahead, &args.ahead_labels}) {
    require_shape(*ids, {rows});
    require_type(*ids, tensor::Dtype::I32);
  }
  for (const Arg* flags : {&args.loss_mask, &args.valid, &args.mask}) {
    require_shape(*flags, {rows});
    require_type(*flags, tensor::Dtype::U8);
  }
  require_shape(args.count, {1});
  require_type(args.count, tensor::Dtype::I64);
}
inline Work work(const signature::mtp_shift::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::mtp_weight::Forward<Arg>& args, const Invocation& call) {
  require_shape(args.count, {1});
  require_type(args.count, tensor::Dtype::I64);
  require_shape(args.norm, {1});
  require_type(args.norm, tensor::Dtype::F64);
  const double weight = call.attr("weight");
  if (!(weight > 0)) refuse(args.norm, "weight is {}, needed more than 0", weight);
}
inline Work work(const signature::mtp_weight::Forward<Arg>&, const Invocation& call) { return moves(call); }

// ---- Scratch: these take none.

template <AnyOf<signature::mtp_shift::Forward<Arg>, signature::mtp_weight::Forward<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
