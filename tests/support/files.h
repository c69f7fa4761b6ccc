// What tests of every folder do with files: a folder that goes away with its test, and whole files read and written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pleat::testing {

// A fresh folder below the system's folder for temporary files; it and what is in it go with the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> names() const;  // of what lies in it, ascending

 private:
  std::string path_;
};

// All bytes of a file. A file that cannot be read throws: two that are missing would compare as equal.
std::string read_file(const std::string& path);
// What a file of another process holds by now; empty where it is not there, yet or any more.
std::string read_by_now(const std::string& path);
// Replaces what the file held.
void write_file(const std::string& path, std::string_view bytes);

}  // namespace pleat::testing
