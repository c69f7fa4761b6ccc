// What the kernels around the weight update ask of their arguments, and what they cost (kernels/contract.h). The
// maths is in optimizer.h.
#pragma once

#include "base/checked.h"
#include "kernels/contract.h"
#include "kernels/math/coords.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/states.h"
#include "tensor/block_codes.h"

namespace pleat::kernels {

template <class Args>
concept CopyArgs = AnyOf<Args, signature::copy::Forward<Arg>, signature::copy::BackwardInput<Arg>,
                         signature::copy::Update<Arg>>;
template <CopyArgs Args>
void check(const Args& args, const Invocation&) {
  require_like(args.y, args.x);
}
template <CopyArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

// host_wait takes anything and moves nothing.
template <class Args>
concept HostWaitArgs =
    AnyOf<Args, signature::host_wait::Forward<Arg>, signature::host_wait::BackwardInput<Arg>,
          signature::host_wait::BackwardWeight<Arg>, signature::host_wait::Update<Arg>>;
template <HostWaitArgs Args>
void check(const Args&, const Invocation&) {}
template <HostWaitArgs Args>
Work work(const Args&, const Invocation&) {
  return {0, 0, 0};
}

template <class Args>
concept AddGradArgs =
    AnyOf<Args, signature::add_grad::BackwardInput<Arg>, signature::add_grad::BackwardWeight<Arg>>;
template <AddGradArgs Args>
void check(const Args& args, const Invocation&) {
  require_float(args.x);
  require_like(args.y, args.x);
}
template <AddGradArgs Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}

inline void check(const signature::grad_norm::Update<Arg>& args, const Invocation& call) {
  require_float(args.g);
  require_coords(args.coords, call);
  int64_t elements = args.g.size();
  if (args.coords.present) {
    require_shard(args.g, call);
    elements = call.integer("elements");
    if (elements < 0) refuse(args.g, "attribute 'elements' is {}, needed 0 or more", elements);
  }
  require_shape(args.parts, {base::ceil_div(elements, kNormBlock)}, tensor::Dtype::F64);
}
inline Work work(const signature::grad_norm::Update<Arg>&, const Invocation& call) { return moves(call); }

inline void check(const signature::clip::Update<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_rank(args.parts, 1);
  require_type(args.parts, Dtype::F64);
  require_type(args.loss, Dtype::F64);
  require_type(args.overflow, Dtype::I64);
  require_shape(args.grad_scale, {2}, Dtype::F64);
  require_shape(args.commit, {1}, Dtype::I32);
  if (!(call.attr("clip") >= 0))
    refuse(args.parts, "attribute 'clip' is {}, needed 0 or more", call.attr("clip"));
}
inline Work work(const signature::clip::Update<Arg>&, const Invocation& call) { return moves(call); }

// ---- adamw, adamw_narrow, adamw_coded

// With coords w is whole, and the others are pieces of it.
template <class Args>
void require_step(const Args& args, const Invocation& call) {
  using tensor::Dtype;
  require_shape(args.hyper, {4}, Dtype::F64);
  require_shape(args.grad_scale, {2}, Dtype::F64);
  require_shape(args.commit, {1}, Dtype::I32);
  require_coords(args.coords, call);
  if (args.coords.present) require_shard(args.g, call);
  require_float(args.w);
  require_stored(args.g, args.w);
  if (!args.coords.present) require_same_shape(args.w, args.g);
  for (const char* key : {"beta1", "beta2"})
    if (!(call.attr(key) >= 0 && call.attr(key) < 1))
      refuse(args.g, "attribute '{}' is {}, needed 0 <= {} < 1", key, call.attr(key), key);
  for (const char* key : {"eps", "weight_decay", "lr_mult"})
    if (!(call.attr(key) >= 0)) refuse(args.g, "attribute '{}' is {}, needed 0 or more", key, call.attr(key));
}

template <class Args>
void require_update(const Args& args, const Invocation& call) {
  require_step(args, call);
  for (const Arg* kept : {&args.m, &args.v}) require_stored(*kept, args.w), require_same_shape(*kept, args.g);
}

inline void check(const signature::adamw::Update<Arg>& args, const Invocation& call) {
  require_update(args, call);
}
// The scalars of the step are made first.
inline Work work(const signature::adamw::Update<Arg>&, const Invocation& call) { return moves(call, 2); }

inline void check(const signature::adamw_narrow::Update<Arg>& args, const Invocation& call) {
  require_type(args.w, tensor::Dtype::BF16);
  require_update(args, call);
  require_type(args.rest, tensor::Dtype::I16);
  if (args.rest.size() != args.g.size())
    refuse(args.rest, "argument 'rest' has {} elements, needed {}", args.rest.size(), args.g.size());
}
inline Work work(const signature::adamw_narrow::Update<Arg>&, const Invocation& call) {
  return moves(call, 2);
}
inline void check(const signature::adamw_coded::Update<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_step(args, call);
  const bool narrow = args.w.dtype == Dtype::BF16;
  if (!narrow) require_type(args.w, Dtype::F32);
  const UpdateStates s = states_of(args.states);
  if (!s.complete || (s.rest && !narrow))
    refuse(args.w,
           "the states are {}; needed the two moments, codes with their scales behind them, and beside a "
           "bf16 weight "
           "what it keeps of its float",
           types_of(args.states));
  const auto require_moment = [&](const Arg& moment, const Arg* scale) {
    require_same_shape(moment, args.g);
    if (scale)
      require_shape(*scale, {base::ceil_div(args.g.size(), tensor::kCodeBlock)}, Dtype::F32);
    else
      require_stored(moment, args.w);
  };
  require_moment(*s.m, s.m_scale);
  require_moment(*s.v, s.v_scale);
  if (s.rest) {
    if (s.rest->dtype != Dtype::U8) require_type(*s.rest, Dtype::I16);
    require_same_shape(*s.rest, args.g);
  }
  // A share begins with a block.
  if (args.coords.present && (s.m_scale || s.v_scale) && args.g.size() < args.w.size() &&
      args.g.size() % tensor::kCodeBlock != 0)
    refuse(args.g, "argument 'g' has {} of {} elements, needed a multiple of {}", args.g.size(),
           args.w.size(), tensor::kCodeBlock);
  const bool chance = narrow && !(s.rest && s.rest->dtype == Dtype::I16);
  if (chance != args.rng.present)
    refuse(args.rng, "argument 'rng' is {}, but bits of the weight are {}",
           args.rng.present ? "there" : "missing", chance ? "left out" : "all kept");
  if (!chance) return;
  require_shape(args.rng, {2}, Dtype::I64);
  if (call.integer("element") < 0)
    refuse(args.rng, "attribute 'element' is {}, needed 0 or more", call.integer("element"));
  const double stream = call.attr("stream");
  if (!(stream >= 0 && stream < 0x1p32 && stream == static_cast<double>(static_cast<uint32_t>(stream))))
    refuse(args.rng, "attribute 'stream' is {}, needed a whole number below 2^32", stream);
}
inline Work work(const signature::adamw_coded::Update<Arg>&, const Invocation& call) {
  return moves(call, 2);
}
// The scalars of the step.
constexpr int64_t kAdamwScalarBytes = 36;
template <AnyOf<signature::adamw::Update<Arg>, signature::adamw_narrow::Update<Arg>,
                signature::adamw_coded::Update<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return kAdamwScalarBytes;
}

inline void check(const signature::bias_update::Update<Arg>& args, const Invocation& call) {
  using tensor::Dtype;
  require_rank(args.load, 1);
  require_type(args.load, Dtype::I64);
  require_shape(args.commit, {1}, Dtype::I32);
  require_shape(args.bias, {args.load.dim(0)}, Dtype::F32);
  call.attr("rate");
}
inline Work work(const signature::bias_update::Update<Arg>&, const Invocation& call) { return moves(call); }

// ---- Scratch: these take none.

template <AnyOf<signature::copy::Forward<Arg>, signature::copy::BackwardInput<Arg>,
                signature::copy::Update<Arg>, signature::host_wait::Forward<Arg>,
                signature::host_wait::BackwardInput<Arg>, signature::host_wait::BackwardWeight<Arg>,
                signature::host_wait::Update<Arg>, signature::add_grad::BackwardInput<Arg>,
                signature::add_grad::BackwardWeight<Arg>, signature::grad_norm::Update<Arg>,
                signature::clip::Update<Arg>, signature::bias_update::Update<Arg>>
              Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
