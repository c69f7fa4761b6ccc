#include "checkpoint/share.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/error.h"

namespace pleat::checkpoint {

Share whole_share(const StateView& state) {
  Share share{state.step, {}, state.integers, state.reals, state.texts};
  for (const TensorRef& t : state.tensors) {
    const int64_t length = num_bytes_of(t.dtype, t.shape, t.name);
    if (t.bytes.size() != length)
      base::fail("tensor '{}' has {} bytes of memory; its shape needs {}", t.name, t.bytes.size(), length);
    share.tensors.push_back({t.name, t.dtype, t.shape, length, t.bytes, [length] {
                               return length == 0 ? std::vector<Part>{} : std::vector<Part>{{0, 0, length}};
                             }});
  }
  return share;
}

ShareStream::ShareStream(const Share& share) {
  for (const ShareTensor& t : share.tensors) tensors_.push_back(&t);
  std::sort(tensors_.begin(), tensors_.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (size_t i = 0; i < tensors_.size(); ++i) {
    first_slices_.push_back(slices_.size());
    ConstBytes::Reader reader = tensors_[i]->bytes.reader();
    for (const Cut& cut : cuts_of(i)) {
      base::Sha256 hash;
      for (const Copy& c : cut.copies)
        for (int64_t at = c.begin, end = c.begin + c.count; at < end;) {
          const std::span<const std::byte> there = reader.at(at, end);
          hash.update(there);
          at += static_cast<int64_t>(there.size());
        }
      slices_.push_back({static_cast<int64_t>(i), cut.where, hash.digest(), length_});
      length_ += cut.where.length();
    }
  }
  first_slices_.push_back(slices_.size());
}

std::vector<Cut> ShareStream::cuts_of(size_t tensor_idx) const {
  const ShareTensor& t = *tensors_[tensor_idx];
  const int64_t length = num_bytes_of(t.dtype, t.shape, t.name);
  const std::vector<Part> parts = t.parts();
  int64_t end = 0;
  for (const Part& part : parts) {
    const auto fits = [&](int64_t begin, int64_t size) { return begin >= 0 && part.count <= size - begin; };
    if (part.count < 0 || part.tensor_begin < end || !fits(part.tensor_begin, length) ||
        !fits(part.out_begin, t.bytes.size()))
      base::fail("{} bytes of tensor '{}' from {} on, at {}: outside of its {} bytes or of the {} in memory",
                 part.count, t.name, part.tensor_begin, part.out_begin, length, t.bytes.size());
    end = part.tensor_begin + part.count;
  }
  if (t.row_bytes < 0 || (length > 0 && t.row_bytes == 0))
    base::fail("tensor '{}' cannot have rows of {} bytes", t.name, t.row_bytes);
  return cut_into_rectangles(parts, t.row_bytes);
}

void ShareStream::open(size_t slice_idx) {
  const auto tensor_idx = static_cast<size_t>(slices_[slice_idx].tensor_idx);
  if (opened_ != tensor_idx) cuts_ = cuts_of(tensor_idx), reader_ = tensors_[tensor_idx]->bytes.reader();
  opened_ = tensor_idx;
  slice_idx_ = slice_idx;
  copy_idx_ = 0;
  copy_begin_ = 0;
}

uint32_t ShareStream::read(int64_t begin, std::span<std::byte> out) {
  uint32_t crc = 0;
  for (int64_t done = 0, all = static_cast<int64_t>(out.size()); done < all;) {
    const int64_t at = begin + done;
    const auto found = static_cast<size_t>(
        std::upper_bound(slices_.begin(), slices_.end(), at,
                         [](int64_t place, const SliceEntry& s) { return place < s.start; }) -
        slices_.begin() - 1);
    const int64_t inside = at - slices_[found].start;
    if (opened_ == static_cast<size_t>(-1) || found != slice_idx_ || inside < copy_begin_) open(found);
    const std::vector<Copy>& copies =
        cuts_[slice_idx_ - first_slices_[static_cast<size_t>(slices_[found].tensor_idx)]].copies;
    while (inside >= copy_begin_ + copies[copy_idx_].count) copy_begin_ += copies[copy_idx_++].count;
    // What follows in the same copy is written next.
    const Copy& copy = copies[copy_idx_];
    const auto there = reader_.at(copy.begin + inside - copy_begin_, copy.begin + copy.count);
    const auto from = there.first(std::min(there.size(), static_cast<size_t>(all - done)));
    crc = base::crc32c(from, crc);
    std::copy(from.begin(), from.end(), out.begin() + done);
    done += static_cast<int64_t>(from.size());
  }
  return crc;
}

}  // namespace pleat::checkpoint
