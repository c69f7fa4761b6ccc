// What the attention kernels check when a program is bound.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/bind.h"

namespace pleat::kernels::attention {

inline AttentionShape shape_of(const Invocation& in, int64_t rows) {
  AttentionShape shape;
  shape.rows = rows;
  shape.heads = static_cast<int>(in.integer("heads"));
  shape.kv_heads = static_cast<int>(in.integer("kv_heads"));
  shape.head_dim = static_cast<int>(in.integer("head_dim"));
  shape.v_head_dim = static_cast<int>(in.integer("v_head_dim"));
  shape.window = in.integer("window");
  shape.scale = in.attr("scale");
  return shape;
}

// `rows` is any argument with a row per token.
inline AttentionShape checked_attributes(std::string_view kernel, const Invocation& in, const Arg& rows,
                                         std::string_view name) {
  if (rows.shape.size() != 2)
    base::fail("[{}] argument '{}' has {} dimensions, needed 2", kernel, name, rows.shape.size());
  const AttentionShape s = shape_of(in, rows.dim(0));
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    base::fail("[{}] heads {} and kv_heads {}: needed a positive multiple", kernel, s.heads, s.kv_heads);
  if (s.head_dim < 1 || s.head_dim > kMaxHeadDim)
    base::fail("[{}] head_dim is {}, needed 1 to {}", kernel, s.head_dim, kMaxHeadDim);
  if (s.v_head_dim < 1 || s.v_head_dim > kMaxHeadDim)
    base::fail("[{}] v_head_dim is {}, needed 1 to {}", kernel, s.v_head_dim, kMaxHeadDim);
  if (s.window < 0) base::fail("[{}] window is {}, needed 0 (none) or more", kernel, s.window);
  if (!std::isfinite(s.scale)) base::fail("[{}] scale is {}, needed a finite number", kernel, s.scale);
  // Row numbers are i32; blocks may count a little past the last row.
  if (s.rows > std::numeric_limits<int32_t>::max() - 65536)
    base::fail("[{}] {} rows are more than an i32 doc_start can name", kernel, s.rows);
  return s;
}

inline void require_output(std::string_view kernel, std::string_view name, const Arg& arg) {
  if (arg.into() != Into::Overwrite) base::fail("[{}] output '{}' can only be overwritten", kernel, name);
}

template <class T>
struct BackwardSinks {
  static void run(const Invocation& in) {
    const signature::attention::BackwardWeight args(in.args);
    attention_backward_sinks<T>(shape_of(in, args.dout.dim(0)), args.dout.as<T>(), args.out.as<T>(),
                                args.lse.as<T>(), args.sinks.as<T>(), args.dsinks.into(), args.dsinks.as<T>(),
                                *in.pool);
  }
};

inline Kernel resolve_sinks(std::string_view kernel, const Invocation& in) {
  const signature::attention::BackwardWeight args(in.args);
  const Arg &dout = args.dout, &out = args.out, &lse = args.lse, &sinks = args.sinks, &dsinks = args.dsinks;
  const AttentionShape s = checked_attributes(kernel, in, dout, "dout");
  require_shape(kernel, "dout", dout, {s.rows, s.out_width()});
  require_shape(kernel, "out", out, {s.rows, s.out_width()});
  require_shape(kernel, "lse", lse, {s.rows, s.heads});
  require_shape(kernel, "sinks", sinks, {s.heads});
  require_shape(kernel, "dsinks", dsinks, {s.heads});
  require_dtype(kernel, "out", out, dout.dtype);
  require_dtype(kernel, "lse", lse, dout.dtype);
  require_dtype(kernel, "sinks", sinks, dout.dtype);
  require_dtype(kernel, "dsinks", dsinks, dout.dtype);
  return select_float<BackwardSinks>(dout.dtype);
}

}  // namespace pleat::kernels::attention
