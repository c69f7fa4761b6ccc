// A model small enough to train dozens of times in a test, with every kind of state a run can have: two
// moments, balancing bias, jitter keyed by step and token, several epochs, a schedule that moves at every
// step.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/posix_vfs.h"
#include "checkpoint/load.h"
#include "config/config.h"
#include "support/process.h"
#include "train/trainer.h"

namespace pleat::train::testing {

using pleat::testing::TemporaryFolder;

// Paragraphs of made-up words, about `num_bytes` long, documents parted by an empty line; a function of the
// arguments.
std::string made_up_text(int64_t num_bytes, uint64_t seed);

// Prepares made-up text as PREFIX.bin/.idx of exactly `num_tokens` tokens in several documents.
void write_dataset(const std::string& prefix, int64_t num_tokens, uint64_t seed);

// TOML of the model above, training on `data` for `steps` steps into `run_dir`.
std::string run_toml(const std::string& data, const std::string& run_dir, int64_t steps);

// The same, ready for a Trainer.
config::Config resolved_config(const TemporaryFolder& folder, int64_t steps,
                               const std::vector<std::string>& sets = {});

// A hook that plants a NaN in the loss's scale of the given steps.
TrainerHooks faults_at(std::vector<int64_t> steps);

// Every persistent tensor by name.
using Tensors = std::map<std::string, std::vector<std::byte>>;
Tensors tensors_of(const Trainer& trainer);

// Runs that are saved as checkpoints of a folder of their own and go on from them.
class SavedRuns : public ::testing::Test {
 protected:
  // `state` after a way through the files of folder `name`, which are written anew.
  checkpoint::Loaded saved(const checkpoint::StateView& state, const std::string& name = "checkpoints");
  // SHA-256 of the state after each of `num_steps` more steps.
  static std::vector<std::string> digests(Trainer& trainer, int64_t num_steps);

  TemporaryFolder folder_;
  base::PosixVfs vfs_;
};

}  // namespace pleat::train::testing
