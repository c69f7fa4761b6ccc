// Tensors as slices: a rank's part cut into rectangles, and the way back from a byte of a tensor to the slice
// it lies in.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/manifest.h"

namespace pleat::checkpoint {

// Bytes in a row of the memory a rectangle is taken from.
struct Copy {
  int64_t begin = 0, count = 0;
};

// One slice to be, and where its bytes are, in their order.
struct Cut {
  Rectangle where;
  std::vector<Copy> copies;
};

// Few rectangles that hold exactly `parts`, which ascend and do not overlap, in ascending order of first row and
// byte. A part of a matrix, of each of its rows or of both is one; where parts begin or end inside a row it is up to
// three.
std::vector<Cut> cut_into_rectangles(std::span<const Part> parts, int64_t row_bytes);

// The slices of each tensor, in ascending order of their first row.
class SliceIndex {
 public:
  SliceIndex() = default;
  explicit SliceIndex(const Manifest& manifest);
  std::span<const uint32_t> of(size_t tensor_idx) const {
    return std::span(order_).subspan(first_[tensor_idx], first_[tensor_idx + 1] - first_[tensor_idx]);
  }

 private:
  std::vector<uint32_t> order_;
  std::vector<size_t> first_;
};

// Walks over the bytes of one tensor from its first row to its last, with the slices that cross the current row
// side by side. Going on is cheap, going back begins again. Throws base::Error naming tensor, bytes and file
// where slices overlap or leave a gap.
class TensorWalk {
 public:
  // All outlive this. `path` is for messages. Not of a tensor that is all zero: it has no slices.
  TensorWalk(const Manifest& manifest, const SliceIndex& index, size_t tensor_idx, const std::string& path);

  struct Piece {
    size_t slice_idx = 0;
    int64_t inside = 0;  // in the slice
    int64_t stored = 0;  // in the stream
    int64_t count = 0;   // bytes that follow each other in the tensor and in the stream
  };
  Piece at(int64_t tensor_begin);  // 0 to length - 1
  // As many places of the stream are read in turn: slices that lie side by side, for every row a part of each. One row
  // is read slice after slice, however many ranks own a part of it.
  size_t num_read_in_turn() const { return tensor_.num_rows() == 1 ? 1 : active_.size(); }
  // To the last row, for the checks alone.
  void check();

 private:
  void begin_again();
  void next_rows();
  const Rectangle& where(uint32_t slice) const { return manifest_.slices[slice].where; }
  void add(uint32_t slice);
  [[noreturn]] void fail_gap() const;
  std::string file_of(uint32_t slice) const;

  const Manifest& manifest_;
  const TensorEntry& tensor_;
  std::span<const uint32_t> slices_;
  const std::string& path_;
  size_t next_ = 0;                             // of slices_
  std::map<int64_t, uint32_t> active_;          // by first byte
  std::set<std::pair<int64_t, int64_t>> ends_;  // of these: row_end, first byte
  int64_t width_ = 0;                           // of these together
  int64_t row_begin_ = 0, row_end_ = 0;         // rows with the same slices
};

}  // namespace pleat::checkpoint
