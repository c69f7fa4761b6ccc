// The scratch of the embedding's gradient on a GPU: the tokens sorted by row of the table, the pieces of runs of
// equal tokens that cross tiles (sum_runs.cuh), and what a sort over the whole device needs (device_sort.cuh):
// a cluster of blocks sorts without it, but whether there is room for a cluster is known to the GPU alone.
#pragma once

#include "kernels/cuda/scratch.h"

namespace pleat::kernels {

// Where the parts begin.
struct EmbeddingScratch {
  static constexpr int64_t kTileTokens = 32;  // of sum_runs.cuh
  // What the library's sort of pairs asks for: both lists once more, and counters of its tiles.
  static int64_t most_of_library(int64_t tokens) { return 10 * tokens + (256 << 10); }

  int64_t sorted_keys = 0, sorted_order, pieces, keys, order, used, library, total;

  EmbeddingScratch(int64_t tokens, int64_t table_rows, int64_t width) {
    const int64_t list = scratch_part(4 * tokens);
    sorted_order = sorted_keys + list;
    pieces = sorted_order + list;
    keys = pieces + scratch_part(base::ceil_div(tokens, kTileTokens) * 2 * width * 4);
    order = keys + list;
    used = order + list;
    library = used + scratch_part(table_rows);
    total = library + scratch_part(most_of_library(tokens));
  }
};

}  // namespace pleat::kernels
