// Shared by the tests of safetensors/: files made by hand, byte by byte, and refusals.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace pleat::safetensors {

// A fresh folder that goes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }
  std::vector<std::string> names() const;  // ascending

 private:
  std::string folder_;
};

void write_file(const std::string& path, std::string_view bytes);
std::string read_file(const std::string& path);

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

// The message of the base::Error that `action` throws; a test failure and "" when it throws none.
std::string refusal(const std::function<void()>& action);

}  // namespace pleat::safetensors

// Statement throws base::Error with `part` in its message.
#define EXPECT_REFUSED(statement, part)                                                                   \
  do {                                                                                                    \
    const std::string message_ = ::pleat::safetensors::refusal([&] { statement; });                       \
    EXPECT_NE(message_.find(part), std::string::npos) << "message: " << message_ << "\nneeded: " << part; \
  } while (false)
