// What ring_attention checks when a program is bound, on every device. Types of results that may be wider
// than the queries' are each device's own business.
#pragma once

#include "kernels/attention/attention_bind.h"
#include "kernels/math/coords.h"

namespace pleat::kernels::attention {

inline constexpr std::string_view kRing = "ring_attention";

// What both directions read. Returns the shape, with T rows.
inline AttentionShape check_ring_inputs(const Invocation& in, const Arg& qkv, const Arg& kv, const Arg& row,
                                        const Arg& key_row, const Arg& doc_start, const Arg& coords) {
  const AttentionShape own = checked_attributes(kRing, in, qkv, "qkv"),
                       keys = checked_attributes(kRing, in, kv, "kv");
  const int64_t ranks = in.integer("ranks"), step = in.integer("step");
  if (ranks < 1 || step < 0 || step >= ranks)
    base::fail("[{}] step {} of a ring of {}: needed 0 to {}", kRing, step, ranks, ranks - 1);
  require_shape(kRing, "qkv", qkv, {own.rows, own.width()});
  require_shape(kRing, "kv", kv, {keys.rows, keys.kv_width()});
  require_shape(kRing, "row", row, {own.rows});
  require_shape(kRing, "key_row", key_row, {ranks * keys.rows});
  require_dtype(kRing, "kv", kv, qkv.dtype);
  require_dtype(kRing, "row", row, tensor::Dtype::I32);
  require_dtype(kRing, "key_row", key_row, tensor::Dtype::I32);
  require_dtype(kRing, "doc_start", doc_start, tensor::Dtype::I32);
  require_coords(kRing, in, coords);
  if (doc_start.shape.size() != 1)
    base::fail("[{}] argument 'doc_start' has {} dimensions, needed 1", kRing, doc_start.shape.size());
  AttentionShape all = own;
  all.rows = doc_start.dim(0);
  return all;
}

inline AttentionShape check_ring_forward(const Invocation& in) {
  const signature::ring_attention::Forward args(in.args);
  const Arg &qkv = args.qkv, &prior_out = args.prior_out, &prior_lse = args.prior_lse, &sinks = args.sinks,
            &out = args.out, &lse = args.lse;
  const AttentionShape s =
      check_ring_inputs(in, qkv, args.kv, args.row, args.key_row, args.doc_start, args.coords);
  const int64_t own = qkv.dim(0), step = in.integer("step");
  if (prior_out.present != prior_lse.present || prior_out.present == (step == 0))
    base::fail("[{}] step {} has {}'prior_out' and {}'prior_lse': needed both behind the first step", kRing,
               step, prior_out.present ? "" : "no ", prior_lse.present ? "" : "no ");
  if (sinks.present && step != 0) base::fail("[{}] step {} has sinks, which enter in step 0", kRing, step);
  require_shape(kRing, "sinks", sinks, {s.heads});
  require_shape(kRing, "prior_out", prior_out, {own, s.out_width()});
  require_shape(kRing, "out", out, {own, s.out_width()});
  require_shape(kRing, "prior_lse", prior_lse, {own, s.heads});
  require_shape(kRing, "lse", lse, {own, s.heads});
  require_dtype(kRing, "sinks", sinks, qkv.dtype);
  require_output(kRing, "out", out);
  require_output(kRing, "lse", lse);
  return s;
}

inline AttentionShape check_ring_backward(const Invocation& in) {
  const signature::ring_attention::BackwardInput args(in.args);
  const Arg &dout = args.dout, &qkv = args.qkv, &kv = args.kv, &out = args.out, &lse = args.lse,
            &dq = args.dq, &dkv = args.dkv;
  const AttentionShape s =
      check_ring_inputs(in, qkv, kv, args.row, args.key_row, args.doc_start, args.coords);
  const int64_t own = qkv.dim(0);
  require_shape(kRing, "dout", dout, {own, s.out_width()});
  require_shape(kRing, "out", out, {own, s.out_width()});
  require_shape(kRing, "lse", lse, {own, s.heads});
  require_shape(kRing, "dq", dq, {own, static_cast<int64_t>(s.heads) * s.head_dim});
  require_shape(kRing, "dkv", dkv, {kv.dim(0), s.kv_width()});
  require_dtype(kRing, "dout", dout, qkv.dtype);
  require_dtype(kRing, "out", out, qkv.dtype);
  require_dtype(kRing, "dq", dq, qkv.dtype);
  require_dtype(kRing, "dkv", dkv, qkv.dtype);
  require_output(kRing, "dkv", dkv);
  return s;
}

}  // namespace pleat::kernels::attention
