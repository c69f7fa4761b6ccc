// Shared by the data tests: raw index files made field by field, error messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/index_view.h"
#include "support/files.h"
#include "support/refusal.h"

namespace pleat::data {

using testing::read_file;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_file;

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
