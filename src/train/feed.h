// Samples into microbatches, and a step's numbers into a program's inputs. The feed holds no state of its own
// but the position in the data.
#pragma once

#include "data/mixture.h"
#include "interpret/run/executor.h"
#include "train/input_rows.h"

namespace pleat::train {

// What the microbatches of one step add up to; the normalisers of the objective come from these.
struct BatchCounts {
  int64_t tokens = 0, loss_tokens = 0, valid_tokens = 0, documents = 0;
};

// norm f64[4]: {1 / loss tokens, 1 / microbatches, 1 / documents, 1 / valid tokens} of the global batch.
// Every loss is normalised by what the whole step holds, so that the split into microbatches does not change
// the objective.
void write_norm(interpret::Executor& executor, const BatchCounts& counts, int64_t num_microbatches);
void write_rng(interpret::Executor& executor, int64_t seed, int64_t step);
void write_hyper(interpret::Executor& executor, double learning_rate, int64_t adam_step);

class Feed {
 public:
  Feed(const data::Mixture& mixture, int64_t micro_batch) : mixture_(mixture), micro_batch_(micro_batch) {}

  // The next microbatch; moves the position on and adds to `counts`.
  void read(data::MixturePosition& position, Microbatch& out, BatchCounts& counts) const;
  // Moves the position on without reading: the microbatch is another rank's.
  void skip(data::MixturePosition& position) const;
  // Rows that count nowhere.
  void blank(Microbatch& out) const;

 private:
  const data::Mixture& mixture_;
  int64_t micro_batch_;
};

}  // namespace pleat::train
