// Routed inputs for tests of the router's and the dispatch folder's GPU kernels.
#pragma once

#include "cuda/cuda_support.h"

namespace pleat::kernels::testing {

// Distinct ascending experts per token. Expert e is left out where e % 4 == 1 and E > 4, so some stay empty;
// with `one` every token takes the experts [0, k).
Tensor random_choice(int64_t num_tokens, int64_t top_k, int64_t experts, uint64_t seed, bool one = false);

// Valid tokens (u8): all, or about three of four.
Tensor some_valid(int64_t num_tokens, bool all);

struct RowPlan {
  Tensor idx, probs, offsets, row_token, row_slot, token_row, dropped;
};
// Made by the CPU. rows: the budget; capacity 0: none.
RowPlan cpu_plan(int64_t num_tokens, int64_t top_k, int64_t experts, int64_t rows, int64_t capacity = 0,
                 bool pad = false, bool one = false);

}  // namespace pleat::kernels::testing
