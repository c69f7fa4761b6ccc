// Small models of every family (tests/golden) and folders that go away with the test.
#pragma once

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

}  // namespace pleat::exchange::testing
