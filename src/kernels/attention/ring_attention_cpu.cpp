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
    const ContextRows queries{in[4].as<int32_t>(), in[4].dim(0)};
    ring_attention_forward<T>(shape_of(in, in[6].dim(0)), queries, keys_of(in, in[3], in[5], in[7]),
                              in[0].as<T>(), in[3].as<T>(), in[6].as<int32_t>(), in[8].as<T>(), in[1].as<T>(),
                              in[2].as<T>(), in[9].as<T>(), in[10].as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const ContextRows queries{in[5].as<int32_t>(), in[5].dim(0)};
    ring_attention_backward<T>(shape_of(in, in[7].dim(0)), queries, keys_of(in, in[2], in[6], in[8]),
                               in[0].as<T>(), in[1].as<T>(), in[2].as<T>(), in[3].as<T>(), in[4].as<T>(),
                               in[7].as<int32_t>(), in[9].into(), in[9].as<T>(), in[10].as<T>(), *in.pool);
  }
};

}  // namespace

Kernel resolve_ring_forward(const Invocation& in) {
  check_ring_forward(in);
  const tensor::Dtype dtype = in[0].dtype;
  require_dtype(kRing, "prior_out", in[1], dtype);
  require_dtype(kRing, "prior_lse", in[2], dtype);
  require_dtype(kRing, "out", in[9], dtype);
  require_dtype(kRing, "lse", in[10], dtype);
  return select_float<Forward>(dtype);
}

Kernel resolve_ring_backward(const Invocation& in) {
  check_ring_backward(in);
  require_dtype(kRing, "lse", in[4], in[1].dtype);
  return select_float<Backward>(in[1].dtype);
}

Kernel resolve_ring_backward_sinks(const Invocation& in) { return resolve_sinks(kRing, in); }

}  // namespace pleat::kernels
