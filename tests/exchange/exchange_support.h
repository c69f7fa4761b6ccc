// Small models of every family (tests/golden), and runs that start from them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/refusal.h"

namespace pleat::exchange::testing {

std::vector<std::string> golden_families();
std::string golden_folder(const std::string& family);

using pleat::testing::message_of;
using pleat::testing::read_file;
using pleat::testing::TemporaryFolder;

// Bytes of every tensor of a model folder by name, after its type and shape.
std::map<std::string, std::pair<std::string, std::vector<std::byte>>> tensors_of(
    const std::string& model_folder);

// A prepared dataset of 2000 tokens below `vocab_size`, for data.train; returns its prefix.
std::string write_dataset(const std::string& folder, int vocab_size);

// `pleat train RUN/config.toml` with `sets` on top.
void train_run(const std::string& run_folder, const std::vector<std::string>& sets);

}  // namespace pleat::exchange::testing
