// The numbers of a step that its microbatches share, into a program's inputs.
#pragma once

#include <cstdint>

#include "interpret/run/executor.h"

namespace pleat::runtime {

// What the microbatches of one step add up to; the normalisers of the objective come from these.
struct BatchCounts {
  int64_t tokens = 0, loss_tokens = 0, valid_tokens = 0, documents = 0;
};

// norm f64[4]: {1 / loss tokens, 1 / microbatches, 1 / documents, 1 / valid tokens} of the global batch.
// Every loss is normalised by what the whole step holds, so that the split into microbatches does not change
// the objective.
void write_norm(interpret::Executor& executor, const BatchCounts& counts, int64_t num_microbatches);
void write_rng(interpret::Executor& executor, int64_t seed, int64_t step);
// previous_norm: of the gradients of the last update; 0 before the first.
void write_hyper(interpret::Executor& executor, double learning_rate, int64_t adam_step,
                 double previous_norm = 0);

}  // namespace pleat::runtime
