#include "data/data_support.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace pleat::data {

RawIndex RawIndex::of(const std::vector<std::vector<int32_t>>& documents, TokenType type) {
  RawIndex index;
  index.type = static_cast<uint8_t>(type);
  int64_t offset = 0;
  index.boundaries.push_back(0);
  for (const auto& document : documents) {
    for (const int32_t length : document) {
      index.lengths.push_back(length);
      index.offsets.push_back(offset);
      offset += length * token_bytes(type);
    }
    index.boundaries.push_back(static_cast<int64_t>(index.lengths.size()));
  }
  index.num_sequences = index.lengths.size();
  index.num_boundaries = index.boundaries.size();
  return index;
}

std::string RawIndex::bytes() const {
  std::string out = magic;
  const auto put = [&](const void* data, size_t size) { out.append(static_cast<const char*>(data), size); };
  put(&version, 8);
  put(&type, 1);
  put(&num_sequences, 8);
  put(&num_boundaries, 8);
  put(lengths.data(), lengths.size() * 4);
  put(offsets.data(), offsets.size() * 8);
  put(boundaries.data(), boundaries.size() * 8);
  return out;
}

int64_t RawIndex::bin_bytes() const {
  int64_t tokens = 0;
  for (const int32_t length : lengths) tokens += length;
  return tokens * token_bytes(static_cast<TokenType>(type));
}

std::string tokenizer_data() { return std::string(PLEAT_SOURCE_DIR) + "/tests/data/tokenizer_data/"; }

void expect_in(const std::string& part, const std::string& message) {
  EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\ngot:    " << message;
}

uint64_t TestRandom::below(uint64_t limit) {
  const base::RandomBlock block = base::RandomStream(seed_, base::RandomUse::Test, 0, 0).block(counter_++);
  return (uint64_t{block[0]} << 32 | block[1]) % limit;
}

}  // namespace pleat::data
