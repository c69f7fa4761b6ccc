// What the rotary kernels ask of their arguments, and what they cost (kernels/contract.h). The maths is in
// rope.h.
#pragma once

#include "kernels/rope/rope_sums.h"

namespace pleat::kernels {

inline void check(const signature::rope_table::Forward<Arg>& args, const Invocation& call) {
  require_rank(args.positions, 1);
  require_rank(args.inv_freq, 1);
  require_type(args.positions, tensor::Dtype::I32);
  require_type(args.inv_freq, tensor::Dtype::F64);
  require_shape(args.cos_sin, {args.positions.dim(0), 2 * args.inv_freq.dim(0)});
  require_type(args.cos_sin, wide_of(args.cos_sin.dtype));
  call.attr("scale");
}
inline Work work(const signature::rope_table::Forward<Arg>&, const Invocation& call) { return moves(call); }

inline RopeShape checked_rope_shape(const Arg& of, const Invocation& call) {
  const RopeShape s = rope_shape(call);
  if (s.heads < 1 || s.kv_heads < 1)
    refuse(of, "heads {} and kv_heads {} must be at least 1", s.heads, s.kv_heads);
  if (s.head_dim < 1 || s.head_dim > kMaxRopeHeadDim)
    refuse(of, "head_dim {} is not between 1 and {}", s.head_dim, kMaxRopeHeadDim);
  if (s.rotary_dim < 0 || s.rotary_dim > s.head_dim || s.rotary_dim % 2 != 0)
    refuse(of, "rotary_dim {} must be even and at most head_dim {}", s.rotary_dim, s.head_dim);
  return s;
}

// Norms are all there or all absent; one over all heads needs them.
inline void check_norms(const RopeShape& shape, const Arg& q_norm, std::initializer_list<const Arg*> others,
                        std::string_view names) {
  for (const Arg* other : others)
    if (other->present != q_norm.present)
      refuse(q_norm, "arguments {} must be all present or all absent", names);
  if (shape.full_norm && !q_norm.present) refuse(q_norm, "full_norm needs q_norm and k_norm");
}

inline void check(const signature::qk_rope::Forward<Arg>& args, const Invocation& call) {
  const RopeShape shape = checked_rope_shape(args.qkv, call);
  require_rank(args.qkv, 2);
  const int64_t rows = args.qkv.dim(0);
  require_shape(args.qkv, {rows, shape.width()});
  require_shape(args.cos_sin, {rows, shape.rotary_dim});
  require_shape(args.q_norm, {shape.q_norm_size()});
  require_shape(args.k_norm, {shape.k_norm_size()});
  require_shape(args.out, {rows, shape.width()});
  require_shape(args.rstd, {rows, shape.num_norms()});
  check_norms(shape, args.q_norm, {&args.k_norm, &args.rstd}, "q_norm, k_norm, rstd");
  require_same_type({&args.qkv, &args.q_norm, &args.k_norm, &args.out});
  require_type(args.cos_sin, wide_of(args.qkv.dtype));
  require_type(args.rstd, wide_of(args.qkv.dtype));
  call.attr("eps");
}
inline Work work(const signature::qk_rope::Forward<Arg>&, const Invocation& call) { return moves(call); }

// What every gradient reads. Returns the shape.
template <class Args>
RopeShape check_rope_inputs(const Args& args, const Invocation& call) {
  const RopeShape shape = checked_rope_shape(args.dout, call);
  require_rank(args.dout, 2);
  const int64_t rows = args.dout.dim(0);
  require_shape(args.dout, {rows, shape.width()});
  require_shape(args.cos_sin, {rows, shape.rotary_dim});
  require_shape(args.qkv, {rows, shape.width()});
  require_shape(args.rstd, {rows, shape.num_norms()});
  require_same_type({&args.dout, &args.qkv});
  require_type(args.cos_sin, wide_of(args.dout.dtype));
  require_type(args.rstd, wide_of(args.dout.dtype));
  return shape;
}

template <class Args>
void check_rope_gradient(const RopeShape& shape, const Args& args) {
  require_shape(args.q_norm, {shape.q_norm_size()});
  require_shape(args.k_norm, {shape.k_norm_size()});
  require_shape(args.dqkv, {args.dout.dim(0), shape.width()});
  require_same_type({&args.dout, &args.q_norm, &args.k_norm, &args.dqkv});
}

template <class Args>
void check_rope_weights(const RopeShape& shape, const Args& args) {
  require_shape(args.dq_norm, {shape.q_norm_size()});
  require_shape(args.dk_norm, {shape.k_norm_size()});
  require_stored(args.dq_norm, args.dout);
  require_stored(args.dk_norm, args.dout);
}

inline void check(const signature::qk_rope::BackwardInput<Arg>& args, const Invocation& call) {
  const RopeShape shape = check_rope_inputs(args, call);
  check_rope_gradient(shape, args);
  check_norms(shape, args.q_norm, {&args.qkv, &args.k_norm, &args.rstd}, "qkv, q_norm, k_norm, rstd");
}
inline Work work(const signature::qk_rope::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::qk_rope::BackwardWeight<Arg>& args, const Invocation& call) {
  check_rope_weights(check_rope_inputs(args, call), args);
}
inline Work work(const signature::qk_rope::BackwardWeight<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

inline void check(const signature::qk_rope_back::BackwardInput<Arg>& args, const Invocation& call) {
  const RopeShape shape = check_rope_inputs(args, call);
  check_rope_gradient(shape, args);
  check_rope_weights(shape, args);
}
inline Work work(const signature::qk_rope_back::BackwardInput<Arg>&, const Invocation& call) {
  return moves(call, 2);
}

// ---- Scratch: partial sums of the gradients of the norms' weights.

inline int64_t scratch_bytes(const signature::qk_rope::BackwardWeight<Arg>& args, const Invocation& call,
                             const Gpu&) {
  return rope_weight_sums(rope_shape(call), args.dout.dim(0)).bytes();
}
// Heads that no lane can hold take the way of the two phases.
inline int64_t scratch_bytes(const signature::qk_rope_back::BackwardInput<Arg>& args, const Invocation& call,
                             const Gpu&) {
  const RopeShape shape = rope_shape(call);
  return std::max(rope_weight_sums(shape, args.dout.dim(0)).bytes(),
                  rope_back_sums(shape, args.dout.dim(0)).bytes());
}
template <AnyOf<signature::rope_table::Forward<Arg>, signature::qk_rope::Forward<Arg>,
                signature::qk_rope::BackwardInput<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
