// Binds the kernels of the cache: shapes and attributes are checked here, once, when a program is bound.
#include "kernels/cached_attention/cached_attention.h"

#include "kernels/math/require.h"

namespace pleat::kernels {
namespace {

// rows [B P, *], cache [B, C, w].
CacheShape cache_shape(std::string_view kernel, const Invocation& call, const Arg& rows, const Arg& cache) {
  require_rank(kernel, "rows", rows, 2);
  require_rank(kernel, "cache", cache, 3);
  CacheShape s;
  s.num_sequences = cache.dim(0);
  s.capacity = cache.dim(1);
  s.width = cache.dim(2);
  s.row_stride = rows.dim(1);
  s.column = call.integer("column");
  s.window = call.integer("window");
  if (s.num_sequences < 1 || s.capacity < 1 || rows.dim(0) % s.num_sequences != 0)
    base::fail("[{}] {} rows and a cache of {} sequences with {} slots do not fit", kernel, rows.dim(0),
               s.num_sequences, s.capacity);
  s.num_rows = rows.dim(0) / s.num_sequences;
  if (s.column < 0 || s.column + s.width > s.row_stride)
    base::fail("[{}] cache rows of {} from column {} leave rows of {}", kernel, s.width, s.column,
               s.row_stride);
  if (s.window < 0) base::fail("[{}] window is {}, needed 0 (none) or more", kernel, s.window);
  return s;
}

CachedAttentionShape attention_shape(const Invocation& call) {
  const signature::cached_attention::Forward args(call.args);
  constexpr std::string_view kName = "cached_attention";
  CachedAttentionShape s;
  s.cache = cache_shape(kName, call, args.rows, args.cache);
  s.heads = static_cast<int>(call.integer("heads"));
  s.kv_heads = static_cast<int>(call.integer("kv_heads"));
  s.head_dim = static_cast<int>(call.integer("head_dim"));
  s.v_head_dim = static_cast<int>(call.integer("v_head_dim"));
  s.v_column = call.integer("v_column");
  s.scale = call.attr("scale");
  require_rank(kName, "q", args.q, 2);
  s.q_stride = args.q.dim(1);
  return s;
}

template <class T>
struct Attend {
  static void run(const Invocation& call) {
    const signature::cached_attention::Forward args(call.args);
    cached_attention(attention_shape(call), args.q.as<T>(), args.rows.as<T>(), args.cache.as<T>(),
                     args.lengths.as<int32_t>(), args.num_new.as<int32_t>(), args.sinks.as<T>(),
                     args.out.as<T>(), *call.pool);
  }
};

template <class T>
struct Append {
  static void run(const Invocation& call) {
    const signature::cache_append::Update args(call.args);
    cache_append(cache_shape("cache_append", call, args.rows, args.cache), args.rows.as<T>(),
                 args.lengths.as<int32_t>(), args.num_new.as<int32_t>(), args.cache.as<T>(), *call.pool);
  }
};

void require_counts(std::string_view kernel, const Arg& lengths, const Arg& num_new, int64_t sequences) {
  require_shape(kernel, "lengths", lengths, {sequences});
  require_shape(kernel, "num_new", num_new, {sequences});
  require_dtype(kernel, "lengths", lengths, tensor::Dtype::I32);
  require_dtype(kernel, "num_new", num_new, tensor::Dtype::I32);
}

Kernel resolve_attention(const Invocation& call) {
  const signature::cached_attention::Forward args(call.args);
  constexpr std::string_view kName = "cached_attention";
  const CachedAttentionShape s = attention_shape(call);
  const int64_t d = s.head_dim, dv = s.v_head_dim, rows = s.cache.num_sequences * s.cache.num_rows;
  if (s.heads < 1 || s.kv_heads < 1 || s.heads % s.kv_heads != 0)
    base::fail("[{}] {} heads must be a multiple of {} key/value heads", kName, s.heads, s.kv_heads);
  if (d < 1 || d > kMaxCachedWidth || dv < 1 || dv > kMaxCachedWidth)
    base::fail("[{}] head widths {} and {}, needed 1 to {}", kName, d, dv, kMaxCachedWidth);
  if (s.kv_heads * d > s.cache.width || s.v_column < 0 || s.v_column + s.kv_heads * dv > s.cache.width)
    base::fail("[{}] keys and values leave a cache row of {}", kName, s.cache.width);
  if (s.q_stride < s.heads * d || args.q.dim(0) != rows)
    base::fail("[{}] argument 'q' is [{}, {}], needed {} rows of at least {}", kName, args.q.dim(0),
               s.q_stride, rows, s.heads * d);
  require_counts(kName, args.lengths, args.num_new, s.cache.num_sequences);
  require_shape(kName, "sinks", args.sinks, {s.heads});
  require_shape(kName, "out", args.out, {rows, s.heads * dv});
  require_same_dtype(kName, call, {"q", "rows", "cache", "", "", "sinks", "out"});
  return select_float<Attend>(args.q.dtype);
}

Kernel resolve_append(const Invocation& call) {
  const signature::cache_append::Update args(call.args);
  constexpr std::string_view kName = "cache_append";
  const CacheShape s = cache_shape(kName, call, args.rows, args.cache);
  require_counts(kName, args.lengths, args.num_new, s.num_sequences);
  require_in_place(kName, "cache", args.cache);
  require_same_dtype(kName, call, {"rows", "", "", "cache"});
  return select_float<Append>(args.rows.dtype);
}

}  // namespace

std::span<const Binding> cached_attention_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::cached_attention, Phase::Forward, resolve_attention},
      {KernelKind::cache_append, Phase::Update, resolve_append},
  };
  return rows;
}

}  // namespace pleat::kernels
