// The weights of a Hugging Face model folder as one table of tensors: model.safetensors, or
// model.safetensors.index.json with the shards it names.
//
// Opening verifies everything but the tensors' values: every header, every name in exactly the shard the
// index says. Pickles are never opened. All shards stay open, so what was verified is what is read.
//
// Weights that the folder's config.json says are quantized (quantized/scheme.h) stand in the table as the tensors
// of numbers they decode to, not as codes and scales: nobody who reads a folder needs to know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/file.h"
#include "safetensors/quantized/block_tensor.h"

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
  // Sum over all tensors of the model, as they are stored.
  int64_t total_bytes() const { return total_bytes_; }
  // What is odd but harmless, one sentence each: tensors the index does not list (they are not part of the
  // model), a total_size that is not the sum, an index beside a single file, quantized weights that config.json
  // says are plain. Transformers loads such folders.
  const std::vector<std::string>& warnings() const { return warnings_; }

  const TensorInfo* find(std::string_view name) const;
  // Throws when there is none of that name.
  const TensorInfo& at(std::string_view name) const;
  // As File's.
  void read(std::string_view name, std::span<std::byte> out) const;
  void read(std::string_view name, int64_t first_byte, std::span<std::byte> out) const;
  // How many bytes to read of a tensor at a time: a bounded number that ends where an element does. Other pieces
  // give the same bytes, but may decode some of them twice.
  int64_t piece_bytes(std::string_view name) const;

  // How config.json says that weights are stored, and which tensors are decoded.
  const Scheme& scheme() const { return scheme_; }
  bool is_quantized(std::string_view name) const { return place_at(name).blocks != nullptr; }
  int64_t num_quantized() const { return static_cast<int64_t>(blocks_.size()); }

 private:
  struct Place {
    StoredTensor stored;
    const BlockTensor* blocks = nullptr;  // in place of `stored`
    const TensorInfo& tensor() const { return blocks ? blocks->info() : *stored.tensor; }
  };

  explicit ModelFolder(std::string path) : path_(std::move(path)) {}
  void open_single(const Descriptor& folder);
  void open_sharded(const Descriptor& folder);
  void decode_blocks();
  const Place* place(std::string_view name) const;
  const Place& place_at(std::string_view name) const;

  std::string path_;
  std::vector<File> files_;  // its elements never move after open: places_ point into it
  std::vector<std::string_view> names_;
  std::vector<Place> places_;  // of names_
  Scheme scheme_;
  std::vector<std::unique_ptr<BlockTensor>> blocks_;
  int64_t total_bytes_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace pleat::safetensors
