// Checks and entry points of ring_attention; the work is done by attention's own tiles.
#include "kernels/attention/ring_attention.h"

#include "kernels/attention/attention_bind.h"
#include "kernels/math/coords.h"

namespace pleat::kernels {
namespace {

using namespace attention;

constexpr std::string_view kName = "ring_attention";

// The rows of the rank whose keys are here in this step.
ContextRows keys_of(const Invocation& in, const Arg& kv, const Arg& key_row, const Arg& coords) {
  const int64_t ranks = in.integer("ranks"), place = coordinate(kName, in, coords), rows = kv.dim(0);
  PLEAT_CHECK(place < ranks, "[{}] place {} in a ring of {}", kName, place, ranks);
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

// What both directions read. Returns the shape, with T rows.
AttentionShape check_inputs(const Invocation& in, const Arg& qkv, const Arg& kv, const Arg& row,
                            const Arg& key_row, const Arg& doc_start, const Arg& coords) {
  const AttentionShape own = checked_attributes(kName, in, qkv, "qkv"),
                       keys = checked_attributes(kName, in, kv, "kv");
  const int64_t ranks = in.integer("ranks"), step = in.integer("step");
  if (ranks < 1 || step < 0 || step >= ranks)
    base::fail("[{}] step {} of a ring of {}: needed 0 to {}", kName, step, ranks, ranks - 1);
  require_shape(kName, "qkv", qkv, {own.rows, own.width()});
  require_shape(kName, "kv", kv, {keys.rows, keys.kv_width()});
  require_shape(kName, "row", row, {own.rows});
  require_shape(kName, "key_row", key_row, {ranks * keys.rows});
  require_dtype(kName, "kv", kv, qkv.dtype);
  require_dtype(kName, "row", row, tensor::Dtype::I32);
  require_dtype(kName, "key_row", key_row, tensor::Dtype::I32);
  require_dtype(kName, "doc_start", doc_start, tensor::Dtype::I32);
  require_coords(kName, in, coords);
  if (doc_start.shape.size() != 1)
    base::fail("[{}] argument 'doc_start' has {} dimensions, needed 1", kName, doc_start.shape.size());
  AttentionShape all = own;
  all.rows = doc_start.dim(0);
  return all;
}

}  // namespace

Kernel resolve_ring_forward(const Invocation& in) {
  const Arg &qkv = in[0], &prior_out = in[1], &prior_lse = in[2], &sinks = in[8], &out = in[9], &lse = in[10];
  const AttentionShape s = check_inputs(in, qkv, in[3], in[4], in[5], in[6], in[7]);
  const int64_t own = qkv.dim(0);
  const bool first = in.integer("step") == 0;
  if (prior_out.present != prior_lse.present || prior_out.present == first)
    base::fail("[{}] step {} has {}'prior_out' and {}'prior_lse': needed both behind the first step", kName,
               in.integer("step"), prior_out.present ? "" : "no ", prior_lse.present ? "" : "no ");
  if (sinks.present && !first)
    base::fail("[{}] step {} has sinks, which enter in step 0", kName, in.integer("step"));
  require_shape(kName, "sinks", sinks, {s.heads});
  for (const auto& [name, arg] :
       {std::pair<std::string_view, const Arg&>{"prior_out", prior_out}, {"out", out}})
    require_shape(kName, name, arg, {own, s.out_width()}), require_dtype(kName, name, arg, qkv.dtype);
  for (const auto& [name, arg] :
       {std::pair<std::string_view, const Arg&>{"prior_lse", prior_lse}, {"lse", lse}})
    require_shape(kName, name, arg, {own, s.heads}), require_dtype(kName, name, arg, qkv.dtype);
  require_dtype(kName, "sinks", sinks, qkv.dtype);
  require_output(kName, "out", out);
  require_output(kName, "lse", lse);
  return select_float<Forward>(qkv.dtype);
}

Kernel resolve_ring_backward(const Invocation& in) {
  const Arg &dout = in[0], &qkv = in[1], &kv = in[2], &out = in[3], &lse = in[4], &dq = in[9], &dkv = in[10];
  const AttentionShape s = check_inputs(in, qkv, kv, in[5], in[6], in[7], in[8]);
  const int64_t own = qkv.dim(0);
  require_shape(kName, "dout", dout, {own, s.out_width()});
  require_shape(kName, "out", out, {own, s.out_width()});
  require_shape(kName, "lse", lse, {own, s.heads});
  require_shape(kName, "dq", dq, {own, static_cast<int64_t>(s.heads) * s.head_dim});
  require_shape(kName, "dkv", dkv, {kv.dim(0), s.kv_width()});
  require_dtype(kName, "dout", dout, qkv.dtype);
  require_dtype(kName, "out", out, qkv.dtype);
  require_dtype(kName, "lse", lse, qkv.dtype);
  require_dtype(kName, "dq", dq, qkv.dtype);
  require_dtype(kName, "dkv", dkv, qkv.dtype);
  require_output(kName, "dkv", dkv);
  return select_float<Backward>(qkv.dtype);
}

Kernel resolve_ring_backward_sinks(const Invocation& in) { return resolve_sinks(kName, in); }

}  // namespace pleat::kernels
