// Shared by the data tests: a folder that goes away, raw index files made field by field, error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/index_view.h"

namespace pleat::data {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::vector<std::string> names() const;

 private:
  std::string folder_;
};

void write_file(const std::string& path, std::string_view bytes);
std::string read_file(const std::string& path);

// The fields of an index exactly as they will stand in the file, right or wrong.
struct RawIndex {
  std::string magic = std::string(kIndexMagic, sizeof(kIndexMagic));
  uint64_t version = 1;
  uint8_t type = 8;
  uint64_t num_sequences = 0;
  uint64_t num_boundaries = 0;
  std::vector<int32_t> lengths;
  std::vector<int64_t> offsets;
  std::vector<int64_t> boundaries;

  // A correct index: documents of sequences of tokens of `type_bytes`.
  static RawIndex of(const std::vector<std::vector<int32_t>>& sequence_lengths_of_documents, TokenType type);
  std::string bytes() const;
  int64_t bin_bytes() const;
};

std::string tokenizer_data();  // tests/data/tokenizer_data/

// The message of the Error the action throws; fails the test when none is thrown.
std::string error_of(const std::function<void()>& action);
void expect_in(const std::string& part, const std::string& message);

// Deterministic random numbers for tests.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : seed_(seed) {}
  uint64_t below(uint64_t limit);

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace pleat::data
