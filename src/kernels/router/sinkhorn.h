// Sinkhorn balancing of a whole microbatch: the keys of a choice in which every expert is about equally
// popular.
#pragma once

#include <cstdint>

#include "device/cpu/pool.h"

namespace pleat::kernels {

// keys [T,E] = d1_j * C_ij * d0_i with C = exp(logits), starting from d1 = 1 and repeating
//   d0_i = 1 / (T' (sum_j d1_j C_ij + 1e-8)),  d1_j = 1 / (E (sum_i d0_i C_ij + 1e-8))
// until the mean absolute change of d1 is at most 1e-4, or kMaxSinkhornRounds. T' and the sum over i count
// valid tokens only; other rows get their keys from the same d1. Elements in R, sums in double in an order
// fixed by the shape.
constexpr int kMaxSinkhornRounds = 1000;

// Returns the number of rounds.
template <class R>
int sinkhorn_keys(device::Pool& pool, const R* logits, const uint8_t* valid, int64_t num_tokens,
                  int64_t num_experts, R* keys);

}  // namespace pleat::kernels
