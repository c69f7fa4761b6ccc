// The header of a safetensors file: 8 bytes of length, JSON, then the tensors' bytes without a gap.
//
// Pure functions from bytes to a table, so that they can be fuzzed. What they return is safe to act on: every
// size was computed with overflow checks, shape, type and byte range of each tensor agree, and the ranges
// cover the data of the file exactly once. Nothing is allocated from a number in the file; memory is bounded
// by the bytes of the header that were really there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "safetensors/element_type.h"

namespace pleat::safetensors {

inline constexpr int64_t kLengthBytes = 8;
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr int64_t kMaxTensors = 1'000'000;
inline constexpr int64_t kMaxDimensions = 64;

struct TensorSpec {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<int64_t> shape;
};

struct TensorInfo : TensorSpec {
  int64_t begin = 0, end = 0;  // bytes, counted from the end of the header
  int64_t num_bytes() const { return end - begin; }
  int64_t num_elements() const { return num_bytes() / size_of(type); }
};

class Header {
 public:
  Header() = default;
  Header(std::vector<TensorInfo> tensors, std::map<std::string, std::string> metadata);

  // In the order of their bytes.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // nullptr when there is none of that name.
  const TensorInfo* find(std::string_view name) const;

 private:
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<int32_t> by_name_;  // positions in tensors_, ascending by name
};

// Bytes of `spec`'s data; throws naming `where` and the tensor when they do not fit in 63 bits.
int64_t num_bytes_of(const TensorSpec& spec, const std::string& where);

// Length of the JSON from the first bytes of a file of `file_bytes` bytes (pass min(8, file_bytes) of them).
int64_t parse_header_length(std::span<const std::byte> first_bytes, int64_t file_bytes,
                            const std::string& where);

// `data_bytes`: what the file holds behind the JSON.
Header parse_header(std::string_view json, int64_t data_bytes, const std::string& where);

// Both of the above on a whole file in memory.
Header parse_file(std::span<const std::byte> file, const std::string& where);

std::string shape_text(std::span<const int64_t> shape);  // "[3, 4]"

}  // namespace pleat::safetensors
