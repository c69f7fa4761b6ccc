// Random numbers of the router: input jitter and forced logits. Keyed by global token index, so that neither
// the microbatch a token falls into nor the rank changes its numbers.
#include <cmath>

#include "base/rng.h"
#include "kernels/router/router.h"
#include "kernels/router/token_tiles.h"

namespace pleat::kernels {
namespace {

using base::RandomStream;
using base::RandomUse;

RandomStream stream_of(const Arg& rng, RandomUse use, uint32_t layer) {
  const int64_t* key = rng.as<int64_t>();
  return RandomStream(static_cast<uint64_t>(key[0]), use, static_cast<uint32_t>(key[1]), layer);
}

// Forward and backward are the same product.
template <class C>
void multiply(const Invocation& call, const Arg& from, const Arg& rng, const Arg& index, const Arg& to) {
  const C* x = from.as<C>();
  const int64_t* token_index = index.as<int64_t>();
  C* y = to.as<C>();
  const bool add = to.into() == Into::Accumulate;
  const int64_t width = from.dim(1);
  const double eps = call.attr("eps");
  const RandomStream stream = stream_of(rng, RandomUse::Jitter, static_cast<uint32_t>(call.integer("layer")));
  const TokenTiles tiles(from.dim(0));
  call.pool->for_each_tile(tiles.num_tiles, [&](int64_t tile) {
    for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
      const uint64_t first = static_cast<uint64_t>(token_index[t] * width);
      for (int64_t c = 0; c < width; ++c) {
        const double u = stream.uniform(first + static_cast<uint64_t>(c));
        const C product = x[t * width + c] * static_cast<C>(1 - eps + 2 * eps * u);
        y[t * width + c] = add ? y[t * width + c] + product : product;
      }
    }
  });
}

template <class C>
struct JitterForward {
  static void run(const Invocation& call) {
    const signature::jitter::Forward<Arg> args(call.args);
    multiply<C>(call, args.x, args.rng, args.token_index, args.y);
  }
};

template <class C>
struct JitterBackward {
  static void run(const Invocation& call) {
    const signature::jitter::BackwardInput<Arg> args(call.args);
    multiply<C>(call, args.dy, args.rng, args.token_index, args.dx);
  }
};

template <class R>
struct Force {
  static void run(const Invocation& call) {
    const signature::router_force::Forward<Arg> args(call.args);
    const int64_t* token_index = args.token_index.as<int64_t>();
    R* forced = args.forced.as<R>();
    const int64_t E = args.logits.dim(1);
    const double bias_std = call.attr("bias_std"), loaded_bias = call.attr("loaded_bias");
    const uint32_t layer = static_cast<uint32_t>(call.integer("layer"));
    const RandomStream noise = stream_of(args.rng, RandomUse::ForcedLogits, layer);
    const int64_t* rng = args.rng.as<int64_t>();
    const RandomStream shared(static_cast<uint64_t>(rng[0]), RandomUse::ForcedBias,
                              bias_std < 0 ? 0 : static_cast<uint32_t>(rng[1]), layer);
    double bias[kMaxExperts];
    for (int64_t e = 0; e < E; ++e)
      bias[e] = (bias_std == 0 ? 0 : std::abs(bias_std) * shared.normal(static_cast<uint64_t>(e))) +
                (e == layer % E ? loaded_bias : 0);
    const TokenTiles tiles(args.logits.dim(0));
    call.pool->for_each_tile(tiles.num_tiles, [&](int64_t tile) {
      for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t)
        for (int64_t e = 0; e < E; ++e)
          forced[t * E + e] =
              static_cast<R>(noise.normal(static_cast<uint64_t>(token_index[t] * E + e)) + bias[e]);
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::jitter::Forward, JitterForward>([](const auto& a) { return a.x.dtype; }),
    row<signature::jitter::BackwardInput, JitterBackward>([](const auto& a) { return a.dy.dtype; }),
    row<signature::router_force::Forward, Force>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> router_noise_bindings() { return kTable; }

}  // namespace pleat::kernels
