// What collectives and transfers ask of their arguments, and what they cost (kernels/contract.h): all that
// can be known without the group. What depends on its size is checked where a stage gets its group
// (interpret/run/collectives.cpp), which also does the work: there are no kernels in this folder. `bytes` is
// what the rank's own memory gives and takes; what goes over a link is cost/machine.h's business.
#pragma once

#include "kernels/math/coords.h"

namespace pleat::kernels {

namespace collectives {

// How many times is the group's size.
inline void require_multiple(const Arg& many, const Arg& one) {
  require_type(many, one.dtype);
  if (one.size() == 0 ? many.size() != 0 : many.size() % one.size() != 0)
    refuse(many, "argument '{}' has {} elements, needed a multiple of the {} of '{}'", many.name, many.size(),
           one.size(), one.name);
}

inline void require_same_size(const Arg& arg, const Arg& other) {
  require_type(arg, other.dtype);
  if (arg.size() != other.size())
    refuse(arg, "argument '{}' has {} elements, needed {} like '{}'", arg.name, arg.size(), other.size(),
           other.name);
}

}  // namespace collectives

template <AnyOf<signature::all_gather::Forward<Arg>, signature::all_gather::BackwardInput<Arg>,
                signature::all_gather::Update<Arg>>
              Args>
void check(const Args& args, const Invocation&) {
  collectives::require_multiple(args.y, args.x);
}

template <AnyOf<signature::reduce_scatter::Forward<Arg>, signature::reduce_scatter::BackwardInput<Arg>> Args>
void check(const Args& args, const Invocation&) {
  collectives::require_multiple(args.x, args.y);
}

template <AnyOf<signature::all_reduce::Forward<Arg>, signature::all_reduce::BackwardInput<Arg>,
                signature::all_reduce::BackwardWeight<Arg>, signature::all_reduce::Update<Arg>>
              Args>
void check(const Args&, const Invocation&) {}

template <AnyOf<signature::all_to_all::Forward<Arg>, signature::all_to_all::BackwardInput<Arg>,
                signature::ring_shift::Forward<Arg>, signature::ring_shift::BackwardInput<Arg>>
              Args>
void check(const Args& args, const Invocation&) {
  collectives::require_same_size(args.y, args.x);
}

inline void check(const signature::reduce_shards::BackwardWeight<Arg>& args, const Invocation& call) {
  require_type(args.shard, args.g.dtype);
  require_shard(args.shard, call);
}

inline void check(const signature::gather_shards::Update<Arg>& args, const Invocation& call) {
  if (call.integer("shard") < 1)
    refuse(args.w, "attribute 'shard' is {}, needed 1 or more", call.integer("shard"));
}

template <AnyOf<signature::rows_to_experts::Forward<Arg>, signature::rows_to_experts::BackwardInput<Arg>,
                signature::rows_to_tokens::Forward<Arg>, signature::rows_to_tokens::BackwardInput<Arg>>
              Args>
void check(const Args& args, const Invocation& call) {
  const int64_t own = call.integer("experts_per_rank"), copies = call.integer("copies");
  if (own < 1 || copies < 1)
    refuse(args.x, "experts_per_rank {} and copies {}: needed 1 or more of each", own, copies);
  require_rank(args.all_offsets, 2);
  require_type(args.all_offsets, tensor::Dtype::I32);
  require_type(args.y, args.x.dtype);
  require_rank(args.y, args.x.shape.size());
  if (args.x.shape.empty()) refuse(args.x, "argument 'x' has no rows");
  for (size_t i = 1; i < args.x.shape.size(); ++i)
    if (args.y.dim(i) != args.x.dim(i))
      refuse(args.y, "argument 'y' has rows of other sizes than 'x': {} and {} in dimension {}",
             args.y.dim(i), args.x.dim(i), i);
}

template <AnyOf<signature::send::Forward<Arg>, signature::send::BackwardInput<Arg>,
                signature::receive::Forward<Arg>, signature::receive::BackwardInput<Arg>>
              Args>
void check(const Args&, const Invocation&) {}

template <AnyOf<signature::meet::Forward<Arg>, signature::meet::BackwardInput<Arg>> Args>
void check(const Args& args, const Invocation&) {
  require_shape(args.met, {1}, tensor::Dtype::U8);
}
// Nothing moves.
template <AnyOf<signature::meet::Forward<Arg>, signature::meet::BackwardInput<Arg>> Args>
Work work(const Args&, const Invocation&) {
  return {};
}
template <AnyOf<signature::meet::Forward<Arg>, signature::meet::BackwardInput<Arg>> Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

template <class Args>
concept AnyExchange =
    AnyOf<Args, signature::all_gather::Forward<Arg>, signature::all_gather::BackwardInput<Arg>,
          signature::all_gather::Update<Arg>, signature::reduce_scatter::Forward<Arg>,
          signature::reduce_scatter::BackwardInput<Arg>, signature::all_reduce::Forward<Arg>,
          signature::all_reduce::BackwardInput<Arg>, signature::all_reduce::BackwardWeight<Arg>,
          signature::all_reduce::Update<Arg>, signature::all_to_all::Forward<Arg>,
          signature::all_to_all::BackwardInput<Arg>, signature::ring_shift::Forward<Arg>,
          signature::ring_shift::BackwardInput<Arg>, signature::reduce_shards::BackwardWeight<Arg>,
          signature::gather_shards::Update<Arg>, signature::rows_to_experts::Forward<Arg>,
          signature::rows_to_experts::BackwardInput<Arg>, signature::rows_to_tokens::Forward<Arg>,
          signature::rows_to_tokens::BackwardInput<Arg>, signature::send::Forward<Arg>,
          signature::send::BackwardInput<Arg>, signature::receive::Forward<Arg>,
          signature::receive::BackwardInput<Arg>>;

// Every one of them is one call.
template <AnyExchange Args>
Work work(const Args&, const Invocation& call) {
  return moves(call);
}
// The communicator's own buffers are its business.
template <AnyExchange Args>
int64_t scratch_bytes(const Args&, const Invocation&, const Gpu&) {
  return 0;
}

}  // namespace pleat::kernels
