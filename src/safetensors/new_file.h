// A file that appears under its name whole or not at all: written under a temporary name in the same folder,
// readable by the owner only, synced, then renamed. A link or file that already has the final name is
// replaced, never written through. What was not committed is removed when the object goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "safetensors/descriptor.h"

namespace pleat::safetensors {

// The folder stays the same one even if its path is renamed meanwhile.
struct OutputFolder {
  std::string path;
  Descriptor descriptor;

  static std::shared_ptr<const OutputFolder> open(const std::string& path);
  // Makes renames in the folder durable.
  void sync() const;
};

class NewFile {
 public:
  // Reserves `num_bytes`, so that a full disk shows now.
  NewFile(std::shared_ptr<const OutputFolder> folder, const std::string& name, int64_t num_bytes);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::span<const std::byte> bytes, int64_t offset);
  // Makes the bytes durable, gives the file the permissions of any new file and closes it.
  void sync();
  // Renames to the final name. Needs sync() before; the caller syncs the folder.
  void commit();

 private:
  std::shared_ptr<const OutputFolder> folder_;
  std::string name_, path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace pleat::safetensors
