// A file that appears under its name whole or not at all: written beside its place under a temporary name,
// synced, then renamed. What is not committed is removed when the object goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pleat::data {

class OutputFile {
 public:
  // Creates the temporary file in the folder of `path`; never follows or reuses an existing name.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Buffered; throws with ExitCode::Storage when the disk refuses.
  void write(std::span<const std::byte> bytes);

  template <class T>
  void write_value(const T& value) {
    write(std::as_bytes(std::span<const T, 1>(&value, 1)));
  }

  int64_t size() const { return size_; }

  // Turns the file into scratch space: it loses its name now, so nothing remains even after a kill.
  void make_nameless();
  // Reads back what was written, for scratch space. Flushes first.
  void read_back(int64_t offset, std::span<std::byte> out);

  // Flushes and syncs the data; nothing may be written afterwards.
  void sync();
  // Renames to the final path, replacing what is there. Needs sync() before; the caller syncs the folder.
  void commit();

 private:
  void flush();

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  bool synced_ = false;
  std::vector<std::byte> buffer_;
};

// Makes renames and removals in the folder of `path` durable.
void sync_folder_of(const std::string& path);

}  // namespace pleat::data
