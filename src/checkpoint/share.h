// What one of several ranks brings to a checkpoint: of every tensor of the state the bytes it owns. All of it, one
// slice after the other, is the rank's own stream of bytes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/slices.h"

namespace pleat::checkpoint {

struct ShareTensor {
  std::string name;
  tensor::Dtype dtype;
  std::vector<int64_t> shape;
  int64_t row_bytes = 0;  // where slices are cut (manifest.h); the same on all ranks
  ConstBytes bytes;       // this rank's memory, which the parts point into
  // What this rank owns: in ascending order, never the same byte twice. Together the ranks own every byte. Asked
  // for whenever the tensor is read: a list for all tensors at once would be long.
  std::function<std::vector<Part>()> parts;
};

struct Share {
  int64_t step = 0;
  std::vector<ShareTensor> tensors;  // all of the state, whoever owns them; order does not matter
  // Those of the leader are saved.
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, std::string> texts;
};

// The share of a rank that has everything.
Share whole_share(const StateView& state);

// The share as slices and as bytes. The memory must not change until this is gone.
class ShareStream {
 public:
  // Digests every slice from where it lies. Throws base::Error (bad input) on memory that is too short for its parts.
  explicit ShareStream(const Share& share);

  const std::vector<const ShareTensor*>& tensors() const { return tensors_; }  // ascending by name
  const std::vector<SliceEntry>& slices() const { return slices_; }  // starts count from the share's own
  int64_t length() const { return length_; }
  // Fills `out` from `begin` on and returns the CRC-32C of these bytes, taken from their source: the copy is one of
  // the things it guards. Cheap as long as places ascend.
  uint32_t read(int64_t begin, std::span<std::byte> out);

 private:
  std::vector<Cut> cuts_of(size_t tensor_idx) const;
  void open(size_t slice_idx);

  std::vector<const ShareTensor*> tensors_;
  std::vector<SliceEntry> slices_;
  std::vector<size_t> first_slices_;  // of each tensor, and the end
  int64_t length_ = 0;
  // The tensor read last, and in it the place.
  size_t opened_ = static_cast<size_t>(-1), slice_idx_ = 0, copy_idx_ = 0;
  int64_t copy_begin_ = 0;  // of the copy in its slice
  std::vector<Cut> cuts_;
  ConstBytes::Reader reader_;
};

}  // namespace pleat::checkpoint
