// Binds the kernels of the cache.
#include "kernels/cached_attention/cached_attention.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Attend {
  static void run(const Invocation& call) {
    const signature::cached_attention::Forward<Arg> args(call.args);
    cached_attention(cached_attention_shape(args, call), args.q.as<T>(), args.rows.as<T>(),
                     args.cache.as<T>(), args.lengths.as<int32_t>(), args.num_new.as<int32_t>(),
                     args.sinks.as<T>(), args.out.as<T>(), *call.pool);
  }
};

template <class T>
struct Append {
  static void run(const Invocation& call) {
    const signature::cache_append::Update<Arg> args(call.args);
    cache_append(cache_shape(args.rows, args.cache, call), args.rows.as<T>(), args.lengths.as<int32_t>(),
                 args.num_new.as<int32_t>(), args.cache.as<T>(), *call.pool);
  }
};

Kernel resolve_attention(const Invocation& call) {
  return select_float<Attend>(signature::cached_attention::Forward(call.args).q.dtype);
}

Kernel resolve_append(const Invocation& call) {
  return select_float<Append>(signature::cache_append::Update(call.args).rows.dtype);
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
