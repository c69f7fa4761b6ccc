// Small models of every family (tests/golden) and folders that go away with the test.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace pleat::exchange::testing {

std::vector<std::string> golden_families();
std::string golden_folder(const std::string& family);

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Bytes of every tensor of a model folder by name, after its type and shape.
std::map<std::string, std::pair<std::string, std::vector<std::byte>>> tensors_of(
    const std::string& model_folder);

// A prepared dataset of 2000 tokens below `vocab_size`, for data.train; returns its prefix.
std::string write_dataset(const std::string& folder, int vocab_size);

// `pleat train RUN/config.toml` with `sets` on top.
void train_run(const std::string& run_folder, const std::vector<std::string>& sets);

std::string text_of_file(const std::string& path);

// The message of the base::Error `f` throws; empty when it throws none.
template <class F>
std::string message_of(F f);

}  // namespace pleat::exchange::testing

#include "base/error.h"

template <class F>
std::string pleat::exchange::testing::message_of(F f) {
  try {
    f();
  } catch (const pleat::base::Error& e) {
    return e.what();
  }
  return "";
}
