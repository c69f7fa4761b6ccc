// One step's data as one rank would see it, and the part of it any rank of a layout gets.
#pragma once

#include "config/config.h"
#include "interpret/run/executor.h"
#include "runtime/input_rows.h"

namespace pleat::verify {

struct Batch {
  std::vector<runtime::Microbatch> microbatches;
  int64_t loss_tokens = 0, valid_tokens = 0, documents = 0;
};

// Random tokens in documents of random lengths, some labels masked, some rows padding: a pure function of
// (config, seed, step).
Batch random_batch(const config::Config& config, uint64_t seed, int64_t step);

// Writes the inputs of the microbatches of this rank's data replica (every dp-th) and the step's numbers;
// previous_norm as in runtime/step_inputs.h.
void write_batch(interpret::Executor& executor, const config::Config& config, const model::Mesh& mesh,
                 const runtime::RankPlace& place, const Batch& batch, int64_t step, double previous_norm);

// For a one-rank program with mesh.pieces: which rank of `layout` owns each natural row of a microbatch.
std::vector<int32_t> pieces_of(const config::Config& config, const model::Mesh& layout);

}  // namespace pleat::verify
