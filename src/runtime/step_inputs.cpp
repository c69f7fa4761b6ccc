#include "runtime/step_inputs.h"

#include <algorithm>

namespace pleat::runtime {

void write_norm(interpret::Executor& executor, const BatchCounts& c, int64_t num_microbatches) {
  const std::span<double> norm = executor.at(program::step::norm);
  const auto inverse = [](int64_t n) { return 1.0 / static_cast<double>(std::max<int64_t>(n, 1)); };
  norm[0] = inverse(c.loss_tokens);
  norm[1] = inverse(num_microbatches);
  norm[2] = inverse(c.documents);
  norm[3] = inverse(c.valid_tokens);
}

void write_rng(interpret::Executor& executor, int64_t seed, int64_t step) {
  const std::span<int64_t> rng = executor.at(program::step::rng);
  rng[0] = seed;
  rng[1] = step;
}

void write_hyper(interpret::Executor& executor, double learning_rate, int64_t adam_step,
                 double previous_norm) {
  const std::span<double> hyper = executor.at(program::step::hyper);
  hyper[0] = learning_rate;
  hyper[1] = static_cast<double>(adam_step);
  hyper[2] = previous_norm * previous_norm;
  hyper[3] = 0;
}

}  // namespace pleat::runtime
