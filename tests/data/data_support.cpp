#include "data/data_support.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/rng.h"

namespace pleat::data {

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "pleat-data-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  folder_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::vector<std::string> TemporaryFolder::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void write_file(const std::string& path, std::string_view bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

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

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

uint64_t TestRandom::below(uint64_t limit) {
  const base::RandomBlock block = base::RandomStream(seed_, base::RandomUse::Test, 0, 0).block(counter_++);
  return (uint64_t{block[0]} << 32 | block[1]) % limit;
}

}  // namespace pleat::data
