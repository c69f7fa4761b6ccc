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

constexpr Binding kTable[] = {
    row<signature::cached_attention::Forward, Attend>([](const auto& a) { return a.q.dtype; }),
    row<signature::cache_append::Update, Append>([](const auto& a) { return a.rows.dtype; }),
};

}  // namespace

std::span<const Binding> cached_attention_bindings() { return kTable; }

}  // namespace pleat::kernels
