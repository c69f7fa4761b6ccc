// Binds the attention kernels: shapes and attributes are checked here, once, when a program is bound.
#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/bind.h"

namespace pleat::kernels {
namespace {

// `rows` is any argument with a row per token.
AttentionShape shape_of(const Invocation& in, const Arg& rows) {
  AttentionShape shape;
  shape.rows = rows.dim(0);
  shape.heads = static_cast<int>(in.integer("heads"));
  shape.kv_heads = static_cast<int>(in.integer("kv_heads"));
  shape.head_dim = static_cast<int>(in.integer("head_dim"));
  shape.v_head_dim = static_cast<int>(in.integer("v_head_dim"));
  shape.window = in.integer("window");
  shape.scale = in.attr("scale");
  return shape;
}

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    attention_forward<T>(shape_of(in, in[0]), in[0].as<T>(), in[1].as<int32_t>(), in[2].as<T>(),
                         in[3].as<T>(), in[4].as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    attention_backward<T>(shape_of(in, in[1]), in[0].as<T>(), in[1].as<T>(), in[2].as<T>(), in[3].as<T>(),
                          in[4].as<int32_t>(), in[5].as<T>(), *in.pool);
  }
};

template <class T>
struct BackwardSinks {
  static void run(const Invocation& in) {
    attention_backward_sinks<T>(shape_of(in, in[0]), in[0].as<T>(), in[1].as<T>(), in[2].as<T>(),
                                in[3].as<T>(), in[4].into(), in[4].as<T>(), *in.pool);
  }
};

AttentionShape checked_attributes(const Invocation& in, const Arg& rows, std::string_view name) {
  if (rows.shape.size() != 2)
    base::fail("[attention] argument '{}' has {} dimensions, needed 2", name, rows.shape.size());
  const AttentionShape s = shape_of(in, rows);
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    base::fail("[attention] heads {} and kv_heads {}: needed a positive multiple", s.heads, s.kv_heads);
  if (s.head_dim < 1 || s.head_dim > kMaxHeadDim)
    base::fail("[attention] head_dim is {}, needed 1 to {}", s.head_dim, kMaxHeadDim);
  if (s.v_head_dim < 1 || s.v_head_dim > kMaxHeadDim)
    base::fail("[attention] v_head_dim is {}, needed 1 to {}", s.v_head_dim, kMaxHeadDim);
  if (s.window < 0) base::fail("[attention] window is {}, needed 0 (none) or more", s.window);
  if (!std::isfinite(s.scale)) base::fail("[attention] scale is {}, needed a finite number", s.scale);
  // Row numbers are i32; blocks may count a little past the last row.
  if (s.rows > std::numeric_limits<int32_t>::max() - 65536)
    base::fail("[attention] {} rows are more than an i32 doc_start can name", s.rows);
  return s;
}

AttentionShape checked_shape(const Invocation& in, const Arg& qkv) {
  const AttentionShape s = checked_attributes(in, qkv, "qkv");
  require_shape("attention", "qkv", qkv, {s.rows, s.width()});
  return s;
}

void require_output(std::string_view name, const Arg& arg) {
  if (arg.into() != Into::Overwrite) base::fail("[attention] output '{}' can only be overwritten", name);
}

Kernel resolve_forward(const Invocation& in) {
  const Arg &qkv = in[0], &doc_start = in[1], &sinks = in[2], &out = in[3], &lse = in[4];
  const AttentionShape s = checked_shape(in, qkv);
  require_shape("attention", "doc_start", doc_start, {s.rows});
  require_shape("attention", "sinks", sinks, {s.heads});
  require_shape("attention", "out", out, {s.rows, s.out_width()});
  require_shape("attention", "lse", lse, {s.rows, s.heads});
  require_dtype("attention", "doc_start", doc_start, tensor::Dtype::I32);
  require_dtype("attention", "sinks", sinks, qkv.dtype);
  require_dtype("attention", "out", out, qkv.dtype);
  require_dtype("attention", "lse", lse, qkv.dtype);
  require_output("out", out);
  require_output("lse", lse);
  return select_float<Forward>(qkv.dtype);
}

Kernel resolve_backward(const Invocation& in) {
  const Arg &dout = in[0], &qkv = in[1], &out = in[2], &lse = in[3], &doc_start = in[4], &dqkv = in[5];
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
  require_output("dqkv", dqkv);
  return select_float<Backward>(qkv.dtype);
}

Kernel resolve_backward_sinks(const Invocation& in) {
  const Arg &dout = in[0], &out = in[1], &lse = in[2], &sinks = in[3], &dsinks = in[4];
  const AttentionShape s = checked_attributes(in, dout, "dout");
  require_shape("attention", "dout", dout, {s.rows, s.out_width()});
  require_shape("attention", "out", out, {s.rows, s.out_width()});
  require_shape("attention", "lse", lse, {s.rows, s.heads});
  require_shape("attention", "sinks", sinks, {s.heads});
  require_shape("attention", "dsinks", dsinks, {s.heads});
  require_dtype("attention", "out", out, dout.dtype);
  require_dtype("attention", "lse", lse, dout.dtype);
  require_dtype("attention", "sinks", sinks, dout.dtype);
  require_dtype("attention", "dsinks", dsinks, dout.dtype);
  return select_float<BackwardSinks>(dout.dtype);
}

}  // namespace

std::span<const Binding> attention_bindings() {
  static constexpr Binding kRows[] = {
      {program::KernelKind::attention, program::Phase::Forward, resolve_forward},
      {program::KernelKind::attention, program::Phase::BackwardInput, resolve_backward},
      {program::KernelKind::attention, program::Phase::BackwardWeight, resolve_backward_sinks},
  };
  return kRows;
}

}  // namespace pleat::kernels
