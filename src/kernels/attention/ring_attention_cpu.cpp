// Checks and entry points of ring_attention; the work is done by attention's own tiles.
#include "kernels/attention/ring_attention.h"

#include "kernels/attention/ring_attention_bind.h"

namespace pleat::kernels {
namespace {

using namespace attention;

// The rows of the rank whose keys are here in this step.
ContextRows keys_of(const Invocation& in, const Arg& kv, const Arg& key_row, const Arg& coords) {
  const int64_t ranks = in.integer("ranks"), place = coordinate(kRing, in, coords), rows = kv.dim(0);
  PLEAT_CHECK(place < ranks, "[{}] place {} in a ring of {}", kRing, place, ranks);
  const int64_t owner = (place + ranks - in.integer("step")) % ranks;
  return {key_row.as<int32_t>() + owner * rows, rows};
}

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    const signature::ring_attention::Forward args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    ring_attention_forward<T>(
        shape_of(in, args.doc_start.dim(0)), queries, keys_of(in, args.kv, args.key_row, args.coords),
        args.qkv.as<T>(), args.kv.as<T>(), args.doc_start.as<int32_t>(), args.sinks.as<T>(),
        args.prior_out.as<T>(), args.prior_lse.as<T>(), args.out.as<T>(), args.lse.as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const signature::ring_attention::BackwardInput args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    ring_attention_backward<T>(
        shape_of(in, args.doc_start.dim(0)), queries, keys_of(in, args.kv, args.key_row, args.coords),
        args.dout.as<T>(), args.qkv.as<T>(), args.kv.as<T>(), args.out.as<T>(), args.lse.as<T>(),
        args.doc_start.as<int32_t>(), args.dq.into(), args.dq.as<T>(), args.dkv.as<T>(), *in.pool);
  }
};

}  // namespace

Kernel resolve_ring_forward(const Invocation& in) {
  const signature::ring_attention::Forward args(in.args);
  check_ring_forward(in);
  const tensor::Dtype dtype = args.qkv.dtype;
  require_dtype(kRing, "prior_out", args.prior_out, dtype);
  require_dtype(kRing, "prior_lse", args.prior_lse, dtype);
  require_dtype(kRing, "out", args.out, dtype);
  require_dtype(kRing, "lse", args.lse, dtype);
  return select_float<Forward>(dtype);
}

Kernel resolve_ring_backward(const Invocation& in) {
  const signature::ring_attention::BackwardInput args(in.args);
  check_ring_backward(in);
  require_dtype(kRing, "lse", args.lse, args.qkv.dtype);
  return select_float<Backward>(args.qkv.dtype);
}

Kernel resolve_ring_backward_sinks(const Invocation& in) { return resolve_sinks(kRing, in); }

}  // namespace pleat::kernels
