// The weights of a Hugging Face model folder as one table of tensors: model.safetensors, or
// model.safetensors.index.json with the shards it names.
//
// Opening verifies everything but the tensors' values: every header, every name in exactly the shard the
// index says. Pickles are never opened. All shards stay open, so what was verified is what is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/file.h"

namespace pleat::safetensors {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexFileName = "model.safetensors.index.json";

class ModelFolder {
 public:
  static ModelFolder open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<File>& files() const { return files_; }
  // Ascending by name.
  const std::vector<std::string_view>& names() const { return names_; }
  // Sum over all tensors of the model.
  int64_t total_bytes() const { return total_bytes_; }
  // What is odd but harmless, one sentence each: tensors the index does not list (they are not part of the
  // model), a total_size that is not the sum, an index beside a single file. Transformers loads such folders.
  const std::vector<std::string>& warnings() const { return warnings_; }

  const TensorInfo* find(std::string_view name) const;
  // Throws when there is none of that name.
  const TensorInfo& at(std::string_view name) const;
  // As File's.
  void read(std::string_view name, std::span<std::byte> out) const;
  void read(std::string_view name, int64_t first_byte, std::span<std::byte> out) const;

 private:
  struct Place {
    const File* file;
    const TensorInfo* tensor;
  };

  explicit ModelFolder(std::string path) : path_(std::move(path)) {}
  void open_single(const Descriptor& folder);
  void open_sharded(const Descriptor& folder);
  const Place* place(std::string_view name) const;
  const Place& place_at(std::string_view name) const;

  std::string path_;
  std::vector<File> files_;  // its elements never move after open: places_ point into it
  std::vector<std::string_view> names_;
  std::vector<Place> places_;  // of names_
  int64_t total_bytes_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace pleat::safetensors
