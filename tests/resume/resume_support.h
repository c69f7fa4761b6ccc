// A model small enough to train dozens of times in a test, with every kind of state a run can have: two
// moments, balancing bias, jitter keyed by step and token, several epochs, a schedule that moves at every
// step.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/process.h"
#include "config/config.h"
#include "train/trainer.h"

namespace pleat::train::testing {

using pleat::testing::TempFolder;

// Paragraphs of made-up words, about `num_bytes` long, documents parted by an empty line; a function of the
// arguments.
std::string made_up_text(int64_t num_bytes, uint64_t seed);

// Prepares made-up text as PREFIX.bin/.idx of exactly `num_tokens` tokens in several documents.
void write_dataset(const std::string& prefix, int64_t num_tokens, uint64_t seed);

// TOML of the model above, training on `data` for `steps` steps into `run_dir`.
std::string run_toml(const std::string& data, const std::string& run_dir, int64_t steps);

// The same, ready for a Trainer.
config::Config resolved_config(const TempFolder& folder, int64_t steps,
                               const std::vector<std::string>& sets = {});

// A hook that plants a NaN in the loss's scale of the given steps.
TrainerHooks faults_at(std::vector<int64_t> steps);

// Every persistent tensor by name.
using Tensors = std::map<std::string, std::vector<std::byte>>;
Tensors tensors_of(const Trainer& trainer);

}  // namespace pleat::train::testing
