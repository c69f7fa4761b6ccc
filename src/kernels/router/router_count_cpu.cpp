// Counters for losses that span microbatches or layers.
#include <algorithm>

#include "kernels/router/router.h"
#include "kernels/router/token_tiles.h"
#include "kernels/router/top_k.h"

namespace pleat::kernels {
namespace {

template <class R>
struct Count {
  static void run(const Invocation& call) {
    const signature::router_count::Forward<Arg> args(call.args);
    const R* logits = args.logits.as<R>();
    const uint8_t* valid = args.valid.as<uint8_t>();
    int64_t *counts = args.counts.as<int64_t>(), *tokens = args.tokens.as<int64_t>();
    const int64_t E = args.logits.dim(1), k = call.integer("top_k");
    if (args.counts.into() == Into::Overwrite) std::fill_n(counts, E, int64_t{0});
    if (args.tokens.into() == Into::Overwrite) tokens[0] = 0;
    const TokenTiles tiles(args.logits.dim(0));
    call.pool->for_each_tile(tiles.num_tiles, [&](int64_t tile) {
      TopK<R> chosen(k);
      int32_t top[kMaxExperts];
      int64_t mine[kMaxExperts], seen = 0;
      std::fill_n(mine, E, int64_t{0});
      for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        if (!valid[t]) continue;
        ++seen;
        choose_top(logits + t * E, E, k, chosen, top);
        for (int64_t i = 0; i < k; ++i) ++mine[top[i]];
      }
      for (int64_t e = 0; e < E; ++e) add_counter(counts[e], mine[e]);
      add_counter(tokens[0], seen);
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::router_count::Forward, Count>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> router_count_bindings() { return kTable; }

}  // namespace pleat::kernels
