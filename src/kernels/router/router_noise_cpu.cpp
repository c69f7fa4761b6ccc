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
struct Jitter {
  static void run(const Invocation& call) {
    const C* x = call[0].as<C>();
    const int64_t* token_index = call[2].as<int64_t>();
    C* y = call[3].as<C>();
    const bool add = call[3].into() == Into::Accumulate;
    const int64_t width = call[0].dim(1);
    const double eps = call.attr("eps");
    const RandomStream stream =
        stream_of(call[1], RandomUse::Jitter, static_cast<uint32_t>(call.integer("layer")));
    const TokenTiles tiles(call[0].dim(0));
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
};

template <class R>
struct Force {
  static void run(const Invocation& call) {
    const signature::router_force::Forward args(call.args);
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

void check_noise(std::string_view kernel, const Invocation& call, std::string_view input,
                 std::string_view output) {
  if (call[0].shape.size() != 2) base::fail("[{}] argument '{}' needs two dimensions", kernel, input);
  require_dtype(kernel, "rng", call[1], tensor::Dtype::I64);
  require_shape(kernel, "rng", call[1], {2});
  require_dtype(kernel, "token_index", call[2], tensor::Dtype::I64);
  require_shape(kernel, "token_index", call[2], {call[0].dim(0)});
  require_dtype(kernel, output, call[3], call[0].dtype);
  require_shape(kernel, output, call[3], {call[0].dim(0), call[0].dim(1)});
}

void check_eps(const Invocation& call) {
  const double eps = call.attr("eps");
  if (!(eps >= 0 && eps < 1)) base::fail("[jitter] eps is {}, needed 0 <= eps < 1", eps);
}

}  // namespace

Kernel resolve_jitter_forward(const Invocation& call) {
  const signature::jitter::Forward args(call.args);
  check_noise("jitter", call, "x", "y");
  check_eps(call);
  return select_float<Jitter>(args.x.dtype);
}

Kernel resolve_jitter_backward_input(const Invocation& call) {
  const signature::jitter::BackwardInput args(call.args);
  check_noise("jitter", call, "dy", "dx");
  check_eps(call);
  return select_float<Jitter>(args.dy.dtype);
}

Kernel resolve_router_force(const Invocation& call) {
  const signature::router_force::Forward args(call.args);
  check_noise("router_force", call, "logits", "forced");
  if (args.logits.dim(1) > kMaxExperts)
    base::fail("[router_force] {} experts, at most {} are supported", args.logits.dim(1), kMaxExperts);
  return select_float<Force>(args.logits.dtype);
}

}  // namespace pleat::kernels
