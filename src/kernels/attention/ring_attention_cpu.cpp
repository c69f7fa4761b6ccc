// Entry points of ring_attention; the work is done by attention's own tiles.
#include "kernels/attention/ring_attention.h"

#include "kernels/math/coords.h"

namespace pleat::kernels {
namespace {

// The rows of the rank whose keys are here in this step.
template <class Args>
ContextRows keys_of(const Args& args, const Invocation& in) {
  const int64_t ranks = in.integer("ranks"), place = coordinate(args.coords, in), rows = args.kv.dim(0);
  PLEAT_CHECK(place < ranks, "[ring_attention] place {} in a ring of {}", place, ranks);
  const int64_t owner = (place + ranks - in.integer("step")) % ranks;
  return {args.key_row.template as<int32_t>() + owner * rows, rows};
}

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    const signature::ring_attention::Forward<Arg> args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    ring_attention_forward<T>(attention_shape(in, args.doc_start.dim(0)), queries, keys_of(args, in),
                              args.qkv.as<T>(), args.kv.as<T>(), args.doc_start.as<int32_t>(),
                              args.sinks.as<T>(), args.prior_out.as<T>(), args.prior_lse.as<T>(),
                              args.out.as<T>(), args.lse.as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const signature::ring_attention::BackwardInput<Arg> args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    ring_attention_backward<T>(attention_shape(in, args.doc_start.dim(0)), queries, keys_of(args, in),
                               args.dout.as<T>(), args.qkv.as<T>(), args.kv.as<T>(), args.out.as<T>(),
                               args.lse.as<T>(), args.doc_start.as<int32_t>(), args.dq.into(),
                               args.dq.as<T>(), args.dkv.as<T>(), *in.pool);
  }
};

}  // namespace

Kernel resolve_ring_forward(const Invocation& in) {
  return select_float<Forward>(signature::ring_attention::Forward(in.args).qkv.dtype);
}

Kernel resolve_ring_backward(const Invocation& in) {
  return select_float<Backward>(signature::ring_attention::BackwardInput(in.args).qkv.dtype);
}

}  // namespace pleat::kernels
