// Tokens cut into few tiles, by shape alone, so that one partial sum per tile fits on the stack.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace pleat::kernels {

constexpr int64_t kMaxTiles = 64;

struct TokenTiles {
  int64_t num_tokens = 0, tile_tokens = 1, num_tiles = 0;

  explicit TokenTiles(int64_t tokens, int64_t max_tiles = kMaxTiles) : num_tokens(tokens) {
    tile_tokens = std::max<int64_t>(16, (tokens + max_tiles - 1) / max_tiles);
    num_tiles = (tokens + tile_tokens - 1) / tile_tokens;
  }
  int64_t begin(int64_t tile) const { return tile * tile_tokens; }
  int64_t end(int64_t tile) const { return std::min(num_tokens, (tile + 1) * tile_tokens); }
};

// Integer sums are exact, so their order is free.
inline void add_counter(int64_t& counter, int64_t value) {
  if (value) std::atomic_ref<int64_t>(counter).fetch_add(value, std::memory_order_relaxed);
}

}  // namespace pleat::kernels
