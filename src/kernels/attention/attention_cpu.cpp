// Binds the attention kernels: shapes and attributes are checked here, once, when a program is bound.
#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/bind.h"

namespace pleat::kernels {
namespace {

AttentionShape shape_of(const Invocation& in, const Arg& qkv) {
  AttentionShape shape;
  shape.rows = qkv.dim(0);
  shape.heads = static_cast<int>(in.integer("heads"));
  shape.kv_heads = static_cast<int>(in.integer("kv_heads"));
  shape.head_dim = static_cast<int>(in.integer("head_dim"));
  shape.window = in.integer("window");
  shape.scale = in.attr("scale");
  return shape;
}

template <class T>
struct Forward {
  static void run(const Invocation& in) {
    attention_forward<T>(shape_of(in, in[0]), in[0].as<T>(), in[1].as<int32_t>(), in[2].as<T>(),
                         in[3].as<T>(), *in.pool);
  }
};

template <class T>
struct Backward {
  static void run(const Invocation& in) {
    attention_backward<T>(shape_of(in, in[1]), in[0].as<T>(), in[1].as<T>(), in[2].as<T>(), in[3].as<T>(),
                          in[4].as<int32_t>(), in[5].as<T>(), *in.pool);
  }
};

AttentionShape checked_shape(const Invocation& in, const Arg& qkv) {
  if (qkv.shape.size() != 2)
    base::fail("[attention] argument 'qkv' has {} dimensions, needed 2", qkv.shape.size());
  const AttentionShape s = shape_of(in, qkv);
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    base::fail("[attention] heads {} and kv_heads {}: needed a positive multiple", s.heads, s.kv_heads);
  if (s.head_dim < 1 || s.head_dim > kMaxHeadDim)
    base::fail("[attention] head_dim is {}, needed 1 to {}", s.head_dim, kMaxHeadDim);
  if (s.window < 0) base::fail("[attention] window is {}, needed 0 (none) or more", s.window);
  if (!std::isfinite(s.scale)) base::fail("[attention] scale is {}, needed a finite number", s.scale);
  // Row numbers are i32; blocks may count a little past the last row.
  if (s.rows > std::numeric_limits<int32_t>::max() - 65536)
    base::fail("[attention] {} rows are more than an i32 doc_start can name", s.rows);
  require_shape("attention", "qkv", qkv,
                {s.rows, static_cast<int64_t>(s.heads + 2 * s.kv_heads) * s.head_dim});
  return s;
}

void require_output(std::string_view name, const Arg& arg) {
  if (arg.into() != Into::Overwrite) base::fail("[attention] output '{}' can only be overwritten", name);
}

Kernel resolve_forward(const Invocation& in) {
  const Arg &qkv = in[0], &doc_start = in[1], &out = in[2], &lse = in[3];
  const AttentionShape s = checked_shape(in, qkv);
  require_shape("attention", "doc_start", doc_start, {s.rows});
  require_shape("attention", "out", out, {s.rows, static_cast<int64_t>(s.heads) * s.head_dim});
  require_shape("attention", "lse", lse, {s.rows, s.heads});
  require_dtype("attention", "doc_start", doc_start, tensor::Dtype::I32);
  require_dtype("attention", "out", out, qkv.dtype);
  require_dtype("attention", "lse", lse, qkv.dtype);
  require_output("out", out);
  require_output("lse", lse);
  return select_float<Forward>(qkv.dtype);
}

Kernel resolve_backward(const Invocation& in) {
  const Arg &dout = in[0], &qkv = in[1], &out = in[2], &lse = in[3], &doc_start = in[4], &dqkv = in[5];
  const AttentionShape s = checked_shape(in, qkv);
  require_shape("attention", "dout", dout, {s.rows, static_cast<int64_t>(s.heads) * s.head_dim});
  require_shape("attention", "out", out, {s.rows, static_cast<int64_t>(s.heads) * s.head_dim});
  require_shape("attention", "lse", lse, {s.rows, s.heads});
  require_shape("attention", "doc_start", doc_start, {s.rows});
  require_shape("attention", "dqkv", dqkv,
                {s.rows, static_cast<int64_t>(s.heads + 2 * s.kv_heads) * s.head_dim});
  require_dtype("attention", "doc_start", doc_start, tensor::Dtype::I32);
  require_dtype("attention", "dout", dout, qkv.dtype);
  require_dtype("attention", "out", out, qkv.dtype);
  require_dtype("attention", "lse", lse, qkv.dtype);
  require_dtype("attention", "dqkv", dqkv, qkv.dtype);
  require_output("dqkv", dqkv);
  return select_float<Backward>(qkv.dtype);
}

}  // namespace

std::span<const Binding> attention_bindings() {
  static constexpr Binding kRows[] = {
      {program::KernelKind::attention, program::Phase::Forward, resolve_forward},
      {program::KernelKind::attention, program::Phase::BackwardInput, resolve_backward},
  };
  return kRows;
}

}  // namespace pleat::kernels
