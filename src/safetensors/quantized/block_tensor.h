// A tensor that a folder stores as codes and scales, as the tensor of numbers it stands for. Its numbers are
// decoded as they are read, a unit at a time: no more than the codes of a few units is ever held.
//
// What it stands for is what transformers makes of it, bit for bit:
//   fp8    X F8_E4M3 [.., R, C] with X_scale_inv F32 or BF16 [.., ceil(R / rows), ceil(C / columns)] is X F32
//          [.., R, C], every code times the scale of its block, rounded once. A unit is a row.
//   mxfp4  X_blocks U8 [E, R, G, 16] with X_scales U8 [E, R, G] is X BF16 [E, 32 G, R]: two codes in a byte, the
//          lower half first, 32 for each scale 2^(s - 127); transposed. Nothing is rounded. A unit is one of E.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "safetensors/file.h"
#include "safetensors/quantized/scheme.h"

namespace pleat::safetensors {

// A tensor as it lies in a file.
struct StoredTensor {
  const File* file;
  const TensorInfo* tensor;
};

class BlockTensor {
 public:
  virtual ~BlockTensor() = default;
  BlockTensor(const BlockTensor&) = delete;
  BlockTensor& operator=(const BlockTensor&) = delete;

  // Name, type and shape of the numbers; `begin` is 0 and means nothing.
  const TensorInfo& info() const { return info_; }
  int64_t unit_bytes() const { return unit_bytes_; }
  // out.size() bytes of the numbers from `first_byte` on. A code without a value, a scale that is not finite and
  // a product that is not are errors that name tensor and place.
  void read(int64_t first_byte, std::span<std::byte> out) const;

 protected:
  BlockTensor(TensorSpec numbers, int64_t num_units, const std::string& where);
  // Whole units.
  virtual void decode(int64_t first_unit, int64_t num_units, std::span<std::byte> out) const = 0;

 private:
  TensorInfo info_;
  int64_t unit_bytes_;
};

// Codes and their scales, whose names, types and shapes are checked here.
std::unique_ptr<BlockTensor> make_fp8_tensor(const StoredTensor& codes, const StoredTensor& scales,
                                             const Scheme& scheme);
std::unique_ptr<BlockTensor> make_mxfp4_tensor(const StoredTensor& codes, const StoredTensor& scales,
                                               const std::string& name);

struct BlockTensors {
  std::vector<std::unique_ptr<BlockTensor>> tensors;
  std::vector<bool> consumed;         // of the stored ones: part of a tensor above
  std::vector<std::string> warnings;  // where quantization_config says otherwise than the tensors
};
// Among all tensors of a folder, ascending by name. Codes without scales and scales without codes are errors.
BlockTensors find_block_tensors(const Scheme& scheme, std::span<const StoredTensor> stored,
                                const std::string& folder);

}  // namespace pleat::safetensors
