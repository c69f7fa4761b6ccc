// Writes safetensors files tensor by tensor: names, types and shapes are declared first, which fixes every
// byte of the header; data follows in any order of tensors and in pieces, so nothing is ever held here.
//
// The bytes depend on the declared tensors and their data alone. They equal what the format's own library
// writes: tensors by element type, widest first, then by name; the header padded with spaces to a multiple of
// 8. Every header is read back by the reader's rules before anything is written, so what cannot be read is
// not written. Nothing appears under a final name before finish().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/header.h"
#include "safetensors/new_file.h"

namespace pleat::safetensors {

using Metadata = std::map<std::string, std::string>;

// Transformers refuses files that do not say which framework they are for.
inline Metadata usual_metadata() { return {{"format", "pt"}}; }

// The 8 bytes of length and the JSON. `where` opens the message when the tensors break a rule.
std::string print_header(std::vector<TensorSpec> tensors, const Metadata& metadata, const std::string& where);

class Writer {
 public:
  Writer(const std::string& path, std::vector<TensorSpec> tensors,
         const Metadata& metadata = usual_metadata());
  Writer(std::shared_ptr<const OutputFolder> folder, const std::string& name, std::vector<TensorSpec> tensors,
         const Metadata& metadata = usual_metadata());

  const Header& header() const { return header_; }
  // The next bytes of tensor `name`, little-endian.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // All bytes of all tensors are there.
  bool is_complete() const { return num_missing_ == 0; }
  // sync, commit and the sync of the folder.
  void finish();

  // The two halves of finish, for several files that should appear together: durable, then named. sync()
  // throws when a tensor is not complete.
  void sync();
  void commit() { file_->commit(); }

 private:
  std::shared_ptr<const OutputFolder> folder_;
  Header header_;
  int64_t data_start_ = 0, num_missing_ = 0;
  std::vector<int64_t> num_written_;  // bytes of each of header_.tensors()
  std::unique_ptr<NewFile> file_;
};

// A model folder's weights, split by the rule of transformers: in declared order, a new shard where the next
// tensor would not fit; one larger than a shard gets its own. One shard is model.safetensors without an
// index.
class FolderWriter {
 public:
  // Makes the folder if it is not there; refuses one that holds weights already, because readers could prefer
  // the old ones.
  FolderWriter(const std::string& folder, std::vector<TensorSpec> tensors, int64_t max_shard_bytes);

  int64_t num_shards() const { return static_cast<int64_t>(shards_.size()); }
  void append(std::string_view name, std::span<const std::byte> bytes);
  // Names all shards, then the index.
  void finish();

 private:
  struct Shard {
    std::string file_name;
    std::vector<TensorSpec> tensors;
    std::unique_ptr<Writer> writer;  // from the first byte on
    bool is_synced = false;
  };
  Writer& writer_of(Shard& shard);
  std::string print_index() const;

  std::shared_ptr<const OutputFolder> folder_;
  std::vector<Shard> shards_;
  std::map<std::string, int32_t, std::less<>> shard_of_;  // by tensor name
  int64_t total_bytes_ = 0;
};

}  // namespace pleat::safetensors
