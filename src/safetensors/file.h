// One open safetensors file. Opening reads and verifies the header and nothing else; tensors are read on
// demand straight into the caller's memory, so the peak is the header plus what the caller gives.
//
// Reading is const and uses no file position: several threads may read from one File.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "safetensors/descriptor.h"
#include "safetensors/header.h"

namespace pleat::safetensors {

class File {
 public:
  // The last component of `path` must be the file itself, not a link.
  static File open(const std::string& path);
  // `name` beneath an open folder; `path` is how messages call the file.
  static File open(const Descriptor& folder, const std::string& name, const std::string& path);

  const std::string& path() const { return path_; }
  const Header& header() const { return header_; }
  // In the order of their bytes.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors(); }
  const TensorInfo* find(std::string_view name) const { return header_.find(name); }
  // Throws when there is none of that name.
  const TensorInfo& at(std::string_view name) const;

  // All bytes of the tensor; `out` must have exactly their number.
  void read(std::string_view name, std::span<std::byte> out) const;
  // out.size() bytes of the tensor from its byte `first_byte` on. `tensor` is one of tensors().
  void read(const TensorInfo& tensor, int64_t first_byte, std::span<std::byte> out) const;

 private:
  File(Descriptor descriptor, std::string path, Header header, int64_t data_start)
      : descriptor_(std::move(descriptor)),
        path_(std::move(path)),
        header_(std::move(header)),
        data_start_(data_start) {}

  Descriptor descriptor_;
  std::string path_;
  Header header_;
  int64_t data_start_;
};

}  // namespace pleat::safetensors
