#include "checkpoint/slices.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace pleat::checkpoint {

std::vector<Cut> cut_into_rectangles(std::span<const Part> parts, int64_t row_bytes) {
  std::vector<Cut> cuts;
  std::map<std::pair<int64_t, int64_t>, size_t> last;  // of each pair of first and last byte
  const auto add = [&](const Rectangle& r, int64_t from) {
    const auto [at, fresh] = last.try_emplace({r.byte_begin, r.byte_end}, cuts.size());
    if (fresh || cuts[at->second].where.row_end != r.row_begin) {
      at->second = cuts.size();
      cuts.push_back({r, {{from, r.length()}}});
      return;
    }
    Cut& cut = cuts[at->second];
    cut.where.row_end = r.row_end;
    if (cut.copies.back().begin + cut.copies.back().count == from)
      cut.copies.back().count += r.length();
    else
      cut.copies.push_back({from, r.length()});
  };
  for (const Part& part : parts) {
    int64_t at = part.tensor_begin, from = part.out_begin;
    for (int64_t left = part.count; left > 0;) {
      const int64_t row = at / row_bytes, byte = at % row_bytes;
      Rectangle r{row, row + 1, byte, std::min(row_bytes, byte + left)};
      if (byte == 0 && left >= row_bytes) r.row_end = row + left / row_bytes;
      add(r, from);
      at += r.length(), from += r.length(), left -= r.length();
    }
  }
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) {
    return std::pair(a.where.row_begin, a.where.byte_begin) <
           std::pair(b.where.row_begin, b.where.byte_begin);
  });
  return cuts;
}

SliceIndex::SliceIndex(const Manifest& manifest) : order_(manifest.slices.size()) {
  const auto& slices = manifest.slices;
  std::iota(order_.begin(), order_.end(), 0u);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    const auto key = [&](uint32_t i) {
      return std::tuple(slices[i].tensor_idx, slices[i].where.row_begin, slices[i].where.byte_begin, i);
    };
    return key(a) < key(b);
  });
  size_t at = 0;
  for (size_t t = 0; t <= manifest.tensors.size(); ++t) {
    while (at < order_.size() && slices[order_[at]].tensor_idx < static_cast<int64_t>(t)) ++at;
    first_.push_back(at);
  }
}

TensorWalk::TensorWalk(const Manifest& manifest, const SliceIndex& index, size_t tensor_idx,
                       const std::string& path)
    : manifest_(manifest),
      tensor_(manifest.tensors[tensor_idx]),
      slices_(index.of(tensor_idx)),
      path_(path) {}

void TensorWalk::begin_again() {
  next_ = 0;
  active_.clear();
  ends_.clear();
  width_ = row_begin_ = row_end_ = 0;
}

std::string TensorWalk::file_of(uint32_t slice) const {
  const auto& shards = manifest_.shards;
  const auto after = std::upper_bound(shards.begin(), shards.end(), manifest_.slices[slice].start,
                                      [](int64_t at, const ShardEntry& s) { return at < s.start; });
  return after == shards.begin() ? "" : (after - 1)->file;
}

void TensorWalk::add(uint32_t slice) {
  const Rectangle& r = where(slice);
  const auto [at, fresh] = active_.try_emplace(r.byte_begin, slice);
  uint32_t other = at->second;
  bool clash = !fresh;
  if (const auto after = std::next(at); !clash && after != active_.end() && after->first < r.byte_end)
    clash = true, other = after->second;
  if (!clash && at != active_.begin() && where(std::prev(at)->second).byte_end > r.byte_begin)
    clash = true, other = std::prev(at)->second;
  if (clash) {
    const int64_t begin = std::max(r.byte_begin, where(other).byte_begin);
    const int64_t end = std::min(r.byte_end, where(other).byte_end), row = row_begin_ * tensor_.row_bytes;
    base::fail("{}: bytes {} to {} of tensor '{}' are there twice, in '{}' and in '{}'", path_, row + begin,
               row + end, tensor_.name, file_of(other), file_of(slice));
  }
  ends_.emplace(r.row_end, r.byte_begin);
  width_ += r.width();
}

void TensorWalk::fail_gap() const {
  int64_t begin = 0, end = tensor_.row_bytes;
  for (const auto& [byte, slice] : active_) {
    if (byte > begin) {
      end = byte;
      break;
    }
    begin = where(slice).byte_end;
  }
  const int64_t row = row_begin_ * tensor_.row_bytes;
  base::fail("{}: bytes {} to {} of tensor '{}' are in no shard", path_, row + begin, row + end,
             tensor_.name);
}

void TensorWalk::next_rows() {
  row_begin_ = row_end_;
  while (!ends_.empty() && ends_.begin()->first == row_begin_) {
    const auto gone = active_.find(ends_.begin()->second);
    width_ -= where(gone->second).width();
    active_.erase(gone);
    ends_.erase(ends_.begin());
  }
  for (; next_ < slices_.size() && where(slices_[next_]).row_begin == row_begin_; ++next_)
    add(slices_[next_]);
  if (width_ != tensor_.row_bytes) fail_gap();
  row_end_ = ends_.begin()->first;
  if (next_ < slices_.size()) row_end_ = std::min(row_end_, where(slices_[next_]).row_begin);
}

TensorWalk::Piece TensorWalk::at(int64_t tensor_begin) {
  const int64_t row = tensor_begin / tensor_.row_bytes, byte = tensor_begin % tensor_.row_bytes;
  if (row < row_begin_) begin_again();
  while (row >= row_end_) next_rows();
  const auto found = std::prev(active_.upper_bound(byte));
  const Rectangle& r = where(found->second);
  Piece piece;
  piece.slice_idx = found->second;
  piece.inside = (row - r.row_begin) * r.width() + byte - r.byte_begin;
  piece.stored = manifest_.slices[found->second].start + piece.inside;
  piece.count = r.width() == tensor_.row_bytes ? r.length() - piece.inside : r.byte_end - byte;
  return piece;
}

void TensorWalk::check() {
  while (row_end_ < tensor_.num_rows()) next_rows();
}

void check_slices(const Manifest& manifest, const std::string& path) {
  if (static_cast<int64_t>(manifest.slices.size()) > kMaxSlices)
    base::fail("{}: {} slices; at most {} are allowed", path, manifest.slices.size(), kMaxSlices);
  for (size_t i = 0; i < manifest.slices.size(); ++i) {
    const SliceEntry& s = manifest.slices[i];
    if (s.tensor_idx < 0 || s.tensor_idx >= static_cast<int64_t>(manifest.tensors.size()))
      base::fail("{}: slice {} is of tensor {}; there are {}", path, i, s.tensor_idx,
                 manifest.tensors.size());
    const TensorEntry& t = manifest.tensors[static_cast<size_t>(s.tensor_idx)];
    const Rectangle& r = s.where;
    if (t.zero)
      base::fail("{}: slice {} is of tensor '{}', which is all zero and stored nowhere", path, i, t.name);
    if (r.row_begin < 0 || r.row_begin >= r.row_end || r.row_end > t.num_rows() || r.byte_begin < 0 ||
        r.byte_begin >= r.byte_end || r.byte_end > t.row_bytes)
      base::fail(
          "{}: slice {} has rows {} to {} and of each bytes {} to {}; tensor '{}' has {} rows of {} bytes",
          path, i, r.row_begin, r.row_end, r.byte_begin, r.byte_end, t.name, t.num_rows(), t.row_bytes);
  }
  const SliceIndex index(manifest);
  for (size_t t = 0; t < manifest.tensors.size(); ++t)
    if (!manifest.tensors[t].zero) TensorWalk(manifest, index, t, path).check();
}

}  // namespace pleat::checkpoint
