// Checks and entry points of context_attention; the work is done by attention's own tiles.
#include "kernels/attention/context_attention.h"

#include "kernels/attention/attention_bind.h"

namespace pleat::kernels {
namespace {

using namespace attention;

constexpr std::string_view kName = "context_attention";

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    const signature::context_attention::Forward args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    context_attention_forward<T>(shape_of(in, args.kv.dim(0)), queries, args.qkv.as<T>(), args.kv.as<T>(),
                                 args.doc_start.as<int32_t>(), args.sinks.as<T>(), args.out.as<T>(),
                                 args.lse.as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const signature::context_attention::BackwardInput args(in.args);
    const ContextRows queries{args.row.as<int32_t>(), args.row.dim(0)};
    context_attention_backward<T>(shape_of(in, args.kv.dim(0)), queries, args.dout.as<T>(), args.qkv.as<T>(),
                                  args.kv.as<T>(), args.out.as<T>(), args.lse.as<T>(),
                                  args.doc_start.as<int32_t>(), args.dq.as<T>(), args.dkv.as<T>(), *in.pool);
  }
};

// What both directions read. Returns the shape, with T rows.
AttentionShape check_inputs(const Invocation& in, const Arg& qkv, const Arg& kv, const Arg& row,
                            const Arg& doc_start) {
  const AttentionShape own = checked_attributes(kName, in, qkv, "qkv"),
                       all = checked_attributes(kName, in, kv, "kv");
  require_shape(kName, "qkv", qkv, {own.rows, own.width()});
  require_shape(kName, "kv", kv, {all.rows, all.kv_width()});
  require_shape(kName, "row", row, {own.rows});
  require_shape(kName, "doc_start", doc_start, {all.rows});
  require_dtype(kName, "kv", kv, qkv.dtype);
  require_dtype(kName, "row", row, tensor::Dtype::I32);
  require_dtype(kName, "doc_start", doc_start, tensor::Dtype::I32);
  return all;
}

}  // namespace

Kernel resolve_context_forward(const Invocation& in) {
  const signature::context_attention::Forward args(in.args);
  const Arg &qkv = args.qkv, &sinks = args.sinks, &out = args.out, &lse = args.lse;
  const AttentionShape s = check_inputs(in, qkv, args.kv, args.row, args.doc_start);
  require_shape(kName, "sinks", sinks, {s.heads});
  require_shape(kName, "out", out, {qkv.dim(0), s.out_width()});
  require_shape(kName, "lse", lse, {qkv.dim(0), s.heads});
  require_dtype(kName, "sinks", sinks, qkv.dtype);
  require_dtype(kName, "out", out, qkv.dtype);
  require_dtype(kName, "lse", lse, qkv.dtype);
  require_output(kName, "out", out);
  require_output(kName, "lse", lse);
  return select_float<Forward>(qkv.dtype);
}

Kernel resolve_context_backward(const Invocation& in) {
  const signature::context_attention::BackwardInput args(in.args);
  const Arg &dout = args.dout, &qkv = args.qkv, &out = args.out, &lse = args.lse, &dq = args.dq,
            &dkv = args.dkv;
  const AttentionShape s = check_inputs(in, qkv, args.kv, args.row, args.doc_start);
  const int64_t own = qkv.dim(0);
  require_shape(kName, "dout", dout, {own, s.out_width()});
  require_shape(kName, "out", out, {own, s.out_width()});
  require_shape(kName, "lse", lse, {own, s.heads});
  require_shape(kName, "dq", dq, {own, static_cast<int64_t>(s.heads) * s.head_dim});
  require_shape(kName, "dkv", dkv, {s.rows, s.kv_width()});
  require_dtype(kName, "dout", dout, qkv.dtype);
  require_dtype(kName, "out", out, qkv.dtype);
  require_dtype(kName, "lse", lse, qkv.dtype);
  require_dtype(kName, "dq", dq, qkv.dtype);
  require_dtype(kName, "dkv", dkv, qkv.dtype);
  require_output(kName, "dq", dq);
  require_output(kName, "dkv", dkv);
  return select_float<Backward>(qkv.dtype);
}

Kernel resolve_context_backward_sinks(const Invocation& in) { return resolve_sinks(kName, in); }

}  // namespace pleat::kernels
