// What attention over packed rows asks of its arguments, and what it costs (kernels/contract.h): alone, with
// the keys of all ranks, and a step of a ring. The maths is in attention.h, context_attention.h and
// ring_attention.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention_scratch.h"
#include "kernels/math/coords.h"

namespace pleat::kernels {

// `rows` is any argument with a row per token.
inline AttentionShape checked_attention_shape(const Arg& rows, const Invocation& call) {
  require_rank(rows, 2);
  const AttentionShape s = attention_shape(call, rows.dim(0));
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    refuse(rows, "heads {} and kv_heads {}: needed a positive multiple", s.heads, s.kv_heads);
  if (s.head_dim < 1 || s.head_dim > kMaxHeadDim)
    refuse(rows, "head_dim is {}, needed 1 to {}", s.head_dim, kMaxHeadDim);
  if (s.v_head_dim < 1 || s.v_head_dim > kMaxHeadDim)
    refuse(rows, "v_head_dim is {}, needed 1 to {}", s.v_head_dim, kMaxHeadDim);
  if (s.window < 0) refuse(rows, "window is {}, needed 0 (none) or more", s.window);
  if (!std::isfinite(s.scale)) refuse(rows, "scale is {}, needed a finite number", s.scale);
  // Row numbers are i32; blocks may count a little past the last row.
  if (s.rows > std::numeric_limits<int32_t>::max() - 65536)
    refuse(rows, "{} rows are more than an i32 doc_start can name", s.rows);
  return s;
}

// The rows of a microbatch are whole sequences.
inline void require_sequences(const Arg& of, int64_t rows, const Invocation& call) {
  const int64_t seq_len = call.integer("seq_len");
  if (seq_len < 1 || rows % seq_len != 0) refuse(of, "{} rows are not whole sequences of {}", rows, seq_len);
}

// A row meets half the keys of its sequence, or its window; a step of a ring meets its part of them: with
// two chunks from both ends of a sequence, the same number in every step.
inline double attention_flops(const Invocation& call, int64_t rows, double per_key, double steps = 1) {
  const double seq_len = call.attr("seq_len"), window = call.attr("window");
  const double keys = std::min(seq_len / 2, window > 0 ? window : seq_len);
  return 2.0 * static_cast<double>(rows) * keys / steps * call.attr("heads") * per_key;
}
// Numbers of a head that a key costs. Forward: scores and values. Backward: scores again, dq and dk; dp and
// dv.
inline double forward_per_key(const Invocation& call) {
  return call.attr("head_dim") + call.attr("v_head_dim");
}
inline double backward_per_key(const Invocation& call) {
  return 3 * call.attr("head_dim") + 2 * call.attr("v_head_dim");
}
// On a GPU backward is one kernel for numbers per row, one for dq, one for dk and dv.
constexpr int kAttentionGradients = 3;

// The gradient of the sinks, which all three have.
template <class Args>
void check_sinks(const Args& args, const Invocation& call) {
  const AttentionShape s = checked_attention_shape(args.dout, call);
  require_shape(args.dout, {s.rows, s.out_width()});
  require_shape(args.out, {s.rows, s.out_width()});
  require_shape(args.lse, {s.rows, s.heads});
  require_shape(args.sinks, {s.heads});
  require_shape(args.dsinks, {s.heads});
  require_same_type({&args.dout, &args.out});
  require_type(args.lse, wide_of(args.dout.dtype));
  require_type(args.sinks, args.dout.dtype);
  require_stored(args.dsinks, args.dout);
}

// What a forward gives and a backward reads of it, one row per query.
template <class Args>
void check_results(const AttentionShape& s, const Args& args) {
  const int64_t own = args.qkv.dim(0);
  require_shape(args.out, {own, s.out_width()});
  require_shape(args.lse, {own, s.heads});
  require_type(args.out, args.qkv.dtype);
  require_type(args.lse, wide_of(args.qkv.dtype));
}

template <class Args>
AttentionShape check_attention_inputs(const Args& args, const Invocation& call) {
  const AttentionShape s = checked_attention_shape(args.qkv, call);
  require_shape(args.qkv, {s.rows, s.width()});
  require_float(args.qkv);
  require_shape(args.doc_start, {s.rows});
  require_type(args.doc_start, tensor::Dtype::I32);
  require_sequences(args.qkv, s.rows, call);
  call.attr("documents"), call.attr("deterministic");
  return s;
}

inline void check(const signature::attention::Forward<Arg>& args, const Invocation& call) {
  const AttentionShape s = check_attention_inputs(args, call);
  require_shape(args.sinks, {s.heads});
  require_type(args.sinks, args.qkv.dtype);
  check_results(s, args);
}
// In bf16 a library computes without sinks, which a second kernel puts in.
inline Work work(const signature::attention::Forward<Arg>& args, const Invocation& call) {
  const bool two = args.sinks.present && args.qkv.dtype == tensor::Dtype::BF16;
  return multiplies(call, attention_flops(call, args.qkv.dim(0), forward_per_key(call)), two ? 2 : 1);
}

inline void check(const signature::attention::BackwardInput<Arg>& args, const Invocation& call) {
  const AttentionShape s = check_attention_inputs(args, call);
  check_results(s, args);
  require_shape(args.dout, {s.rows, s.out_width()});
  require_shape(args.dqkv, {s.rows, s.width()});
  require_same_type({&args.qkv, &args.dout, &args.dqkv});
}
inline Work work(const signature::attention::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, attention_flops(call, args.dout.dim(0), backward_per_key(call)),
                    kAttentionGradients);
}

inline void check(const signature::attention::BackwardWeight<Arg>& args, const Invocation& call) {
  check_sinks(args, call);
}
inline Work work(const signature::attention::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// Returns the shape with the rows of the microbatch.
template <class Args>
AttentionShape check_context_inputs(const Args& args, const Invocation& call) {
  const AttentionShape own = checked_attention_shape(args.qkv, call),
                       all = checked_attention_shape(args.kv, call);
  require_shape(args.qkv, {own.rows, own.width()});
  require_shape(args.kv, {all.rows, all.kv_width()});
  require_shape(args.row, {own.rows});
  require_shape(args.doc_start, {all.rows});
  require_same_type({&args.qkv, &args.kv});
  require_type(args.row, tensor::Dtype::I32);
  require_type(args.doc_start, tensor::Dtype::I32);
  require_sequences(args.kv, all.rows, call);
  return all;
}

inline void check(const signature::context_attention::Forward<Arg>& args, const Invocation& call) {
  const AttentionShape s = check_context_inputs(args, call);
  require_shape(args.sinks, {s.heads});
  require_type(args.sinks, args.qkv.dtype);
  check_results(s, args);
}
inline Work work(const signature::context_attention::Forward<Arg>& args, const Invocation& call) {
  return multiplies(call, attention_flops(call, args.qkv.dim(0), forward_per_key(call)));
}

inline void check(const signature::context_attention::BackwardInput<Arg>& args, const Invocation& call) {
  const AttentionShape s = check_context_inputs(args, call);
  check_results(s, args);
  const int64_t own = args.qkv.dim(0);
  require_shape(args.dout, {own, s.out_width()});
  require_shape(args.dq, {own, s.q_width()});
  require_shape(args.dkv, {s.rows, s.kv_width()});
  require_same_type({&args.qkv, &args.dout, &args.dq, &args.dkv});
}
inline Work work(const signature::context_attention::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, attention_flops(call, args.dout.dim(0), backward_per_key(call)),
                    kAttentionGradients);
}

inline void check(const signature::context_attention::BackwardWeight<Arg>& args, const Invocation& call) {
  check_sinks(args, call);
}
inline Work work(const signature::context_attention::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// Returns the shape with the rows of the microbatch.
template <class Args>
AttentionShape check_ring_inputs(const Args& args, const Invocation& call) {
  const AttentionShape own = checked_attention_shape(args.qkv, call),
                       keys = checked_attention_shape(args.kv, call);
  const int64_t ranks = call.integer("ranks"), step = call.integer("step");
  if (ranks < 1 || step < 0 || step >= ranks)
    refuse(args.qkv, "step {} of a ring of {}: needed 0 to {}", step, ranks, ranks - 1);
  require_shape(args.qkv, {own.rows, own.width()});
  require_shape(args.kv, {keys.rows, keys.kv_width()});
  require_shape(args.row, {own.rows});
  require_shape(args.key_row, {ranks * keys.rows});
  require_same_type({&args.qkv, &args.kv});
  require_type(args.row, tensor::Dtype::I32);
  require_type(args.key_row, tensor::Dtype::I32);
  require_type(args.doc_start, tensor::Dtype::I32);
  require_coords(args.coords, call);
  require_rank(args.doc_start, 1);
  AttentionShape all = own;
  all.rows = args.doc_start.dim(0);
  require_sequences(args.doc_start, all.rows, call);
  return all;
}

// What the next step goes on with is wide; the last one's out may be either.
inline void check(const signature::ring_attention::Forward<Arg>& args, const Invocation& call) {
  const AttentionShape s = check_ring_inputs(args, call);
  const int64_t own = args.qkv.dim(0), step = call.integer("step");
  const tensor::Dtype wide = wide_of(args.qkv.dtype);
  const bool after = args.prior_out.present;
  if (after != args.prior_lse.present || after == (step == 0))
    refuse(args.prior_out, "step {} has {}'prior_out' and {}'prior_lse': needed both behind the first step",
           step, after ? "" : "no ", args.prior_lse.present ? "" : "no ");
  if (args.sinks.present && step != 0) refuse(args.sinks, "step {} has sinks, which enter in step 0", step);
  require_shape(args.sinks, {s.heads});
  require_shape(args.prior_out, {own, s.out_width()});
  require_shape(args.out, {own, s.out_width()});
  require_shape(args.prior_lse, {own, s.heads});
  require_shape(args.lse, {own, s.heads});
  require_type(args.sinks, args.qkv.dtype);
  require_type(args.prior_out, wide);
  require_type(args.prior_lse, wide);
  require_type(args.lse, wide);
  if (args.out.dtype != wide) require_type(args.out, args.qkv.dtype);
}
inline Work work(const signature::ring_attention::Forward<Arg>& args, const Invocation& call) {
  return multiplies(call, attention_flops(call, args.qkv.dim(0), forward_per_key(call), call.attr("ranks")));
}

inline void check(const signature::ring_attention::BackwardInput<Arg>& args, const Invocation& call) {
  const AttentionShape s = check_ring_inputs(args, call);
  check_results(s, args);
  const int64_t own = args.qkv.dim(0);
  require_shape(args.dout, {own, s.out_width()});
  require_shape(args.dq, {own, s.q_width()});
  require_shape(args.dkv, {args.kv.dim(0), s.kv_width()});
  require_same_type({&args.qkv, &args.dout, &args.dq, &args.dkv});
}
inline Work work(const signature::ring_attention::BackwardInput<Arg>& args, const Invocation& call) {
  return multiplies(call, attention_flops(call, args.dout.dim(0), backward_per_key(call), call.attr("ranks")),
                    kAttentionGradients);
}

inline void check(const signature::ring_attention::BackwardWeight<Arg>& args, const Invocation& call) {
  check_sinks(args, call);
}
inline Work work(const signature::ring_attention::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// ---- Scratch: attention_scratch.h says what is in it.

inline int64_t scratch_bytes(const signature::attention::Forward<Arg>& args, const Invocation& call,
                             const Gpu&) {
  return attention::forward_scratch_bytes(attention::cudnn_case(args.qkv, call, false), args.qkv.dtype);
}
inline int64_t scratch_bytes(const signature::attention::BackwardInput<Arg>& args, const Invocation& call,
                             const Gpu&) {
  return attention::backward_scratch_bytes(attention::cudnn_case(args.qkv, call, true), args.qkv.dtype);
}
template <
    AnyOf<signature::context_attention::BackwardInput<Arg>, signature::ring_attention::BackwardInput<Arg>>
        Args>
int64_t scratch_bytes(const Args& args, const Invocation& call, const Gpu&) {
  return attention::row_dot_bytes(args.qkv.dim(0), call.integer("heads"));
}
template <AnyOf<signature::attention::BackwardWeight<Arg>, signature::context_attention::BackwardWeight<Arg>,
                signature::ring_attention::BackwardWeight<Arg>>
              Args>
int64_t scratch_bytes(const Args& args, const Invocation& call, const Gpu&) {
  return attention::sink_bytes(args.dout.dim(0), call.integer("heads"));
}
template <AnyOf<signature::context_attention::Forward<Arg>, signature::ring_attention::Forward<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
