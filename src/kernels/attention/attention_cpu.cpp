// Binds the attention kernels: shapes and attributes are checked here, once, when a program is bound.
#include "kernels/attention/attention_bind.h"
#include "kernels/attention/context_attention.h"
#include "kernels/attention/ring_attention.h"

namespace pleat::kernels {
namespace {

using namespace attention;

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    const signature::attention::Forward args(in.args);
    attention_forward<T>(shape_of(in, args.qkv.dim(0)), args.qkv.as<T>(), args.doc_start.as<int32_t>(),
                         args.sinks.as<T>(), args.out.as<T>(), args.lse.as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    const signature::attention::BackwardInput args(in.args);
    attention_backward<T>(shape_of(in, args.qkv.dim(0)), args.dout.as<T>(), args.qkv.as<T>(),
                          args.out.as<T>(), args.lse.as<T>(), args.doc_start.as<int32_t>(), args.dqkv.as<T>(),
                          *in.pool);
  }
};

AttentionShape checked_shape(const Invocation& in, const Arg& qkv) {
  const AttentionShape s = checked_attributes("attention", in, qkv, "qkv");
  require_shape("attention", "qkv", qkv, {s.rows, s.width()});
  return s;
}

Kernel resolve_forward(const Invocation& in) {
  const signature::attention::Forward args(in.args);
  const Arg &qkv = args.qkv, &doc_start = args.doc_start, &sinks = args.sinks, &out = args.out,
            &lse = args.lse;
  const AttentionShape s = checked_shape(in, qkv);
  require_shape("attention", "doc_start", doc_start, {s.rows});
  require_shape("attention", "sinks", sinks, {s.heads});
  require_shape("attention", "out", out, {s.rows, s.out_width()});
  require_shape("attention", "lse", lse, {s.rows, s.heads});
  require_dtype("attention", "doc_start", doc_start, tensor::Dtype::I32);
  require_dtype("attention", "sinks", sinks, qkv.dtype);
  require_dtype("attention", "out", out, qkv.dtype);
  require_dtype("attention", "lse", lse, qkv.dtype);
  require_output("attention", "out", out);
  require_output("attention", "lse", lse);
  return select_float<Forward>(qkv.dtype);
}

Kernel resolve_backward(const Invocation& in) {
  const signature::attention::BackwardInput args(in.args);
  const Arg &dout = args.dout, &qkv = args.qkv, &out = args.out, &lse = args.lse, &doc_start = args.doc_start,
            &dqkv = args.dqkv;
  const AttentionShape s = checked_shape(in, qkv);
  require_shape("attention", "dout", dout, {s.rows, s.out_width()});
  require_shape("attention", "out", out, {s.rows, s.out_width()});
  require_shape("attention", "lse", lse, {s.rows, s.heads});
  require_shape("attention", "doc_start", doc_start, {s.rows});
  require_shape("attention", "dqkv", dqkv, {s.rows, s.width()});
  require_dtype("attention", "doc_start", doc_start, tensor::Dtype::I32);
  require_dtype("attention", "dout", dout, qkv.dtype);
  require_dtype("attention", "out", out, qkv.dtype);
  require_dtype("attention", "lse", lse, qkv.dtype);
  require_dtype("attention", "dqkv", dqkv, qkv.dtype);
  require_output("attention", "dqkv", dqkv);
  return select_float<Backward>(qkv.dtype);
}

Kernel resolve_backward_sinks(const Invocation& in) { return resolve_sinks("attention", in); }

}  // namespace

std::span<const Binding> attention_bindings() {
  static constexpr Binding kRows[] = {
      {program::KernelKind::attention, program::Phase::Forward, resolve_forward},
      {program::KernelKind::attention, program::Phase::BackwardInput, resolve_backward},
      {program::KernelKind::attention, program::Phase::BackwardWeight, resolve_backward_sinks},
      {program::KernelKind::context_attention, program::Phase::Forward, resolve_context_forward},
      {program::KernelKind::context_attention, program::Phase::BackwardInput, resolve_context_backward},
      {program::KernelKind::context_attention, program::Phase::BackwardWeight,
       resolve_context_backward_sinks},
      {program::KernelKind::ring_attention, program::Phase::Forward, resolve_ring_forward},
      {program::KernelKind::ring_attention, program::Phase::BackwardInput, resolve_ring_backward},
      {program::KernelKind::ring_attention, program::Phase::BackwardWeight, resolve_ring_backward_sinks},
  };
  return kRows;
}

}  // namespace pleat::kernels
