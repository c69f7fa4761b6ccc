// Shared by the tests of safetensors/: files made by hand, byte by byte, and refusals.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

#include "support/files.h"
#include "support/refusal.h"

namespace pleat::safetensors {

using testing::read_file;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_file;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t bits() { return engine_(); }
  uint64_t below(uint64_t limit) { return engine_() % limit; }
  std::string text(size_t num_bytes);

 private:
  std::mt19937_64 engine_;
};

// 8 bytes of length, the JSON, the data.
std::string file_image(std::string_view json, std::string_view data);
std::string length_bytes(uint64_t length);

}  // namespace pleat::safetensors

// Statement throws base::Error with `part` in its message.
#define EXPECT_REFUSED(statement, part)                                                                   \
  do {                                                                                                    \
    const std::string message_ = ::pleat::testing::refusal([&] { statement; });                           \
    EXPECT_NE(message_.find(part), std::string::npos) << "message: " << message_ << "\nneeded: " << part; \
  } while (false)
