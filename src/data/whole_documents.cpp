#include "data/whole_documents.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "base/counted.h"
#include "base/error.h"
#include "data/permutation.h"

namespace pleat::data {
namespace {

// A tree over sequences whose nodes know the most room below them: the first sequence with enough room is
// found by going down, left where possible.
class FirstFit {
 public:
  // At most `most` sequences will be opened.
  FirstFit(int64_t most, int32_t seq_len)
      : leaves_(std::bit_ceil(static_cast<size_t>(std::max<int64_t>(most, 1)))),
        room_(2 * leaves_, seq_len) {}

  int64_t place(int32_t length) {
    size_t node = 1;
    PLEAT_CHECK(room_[node] >= length);
    while (node < leaves_) node = 2 * node + (room_[2 * node] < length);
    const size_t sequence = node - leaves_;
    room_[node] -= length;
    while (node /= 2) room_[node] = std::max(room_[2 * node], room_[2 * node + 1]);
    return static_cast<int64_t>(sequence);
  }

 private:
  size_t leaves_;
  std::vector<int32_t> room_;
};

// Of the order in which documents are taken: no epoch of samples has this number.
constexpr int64_t kDocumentOrder = std::numeric_limits<int64_t>::max();

struct Taken {
  uint32_t document;
  int32_t length;
  int64_t sequence;
};

}  // namespace

WholeDocuments::WholeDocuments(const IndexedDataset& dataset, const Options& o) : seq_len_(o.seq_len) {
  const int64_t total = dataset.num_documents();
  if (total > std::numeric_limits<uint32_t>::max())
    base::fail("{}: {} documents; without cutting any, up to 4294967295 can be packed", dataset.prefix(),
               total);
  int64_t longest = 0, longest_length = 0, num_empty = 0;
  std::vector<Taken> group;
  const auto finish_group = [&] {
    int64_t tokens = 0;
    for (const Taken& one : group) tokens += one.length;
    // All sequences but one are more than half full: two that are not would have been one.
    FirstFit fit(std::min<int64_t>(static_cast<int64_t>(group.size()), 2 * tokens / o.seq_len + 2),
                 static_cast<int32_t>(o.seq_len));
    for (Taken& one : group) one.sequence = fit.place(one.length);
    std::stable_sort(group.begin(), group.end(),
                     [](const Taken& a, const Taken& b) { return a.sequence < b.sequence; });
    for (size_t i = 0; i < group.size(); ++i) {
      documents_.push_back(group[i].document);
      if (i + 1 == group.size() || group[i + 1].sequence != group[i].sequence)
        begin_.push_back(static_cast<int64_t>(documents_.size()));
    }
    num_tokens_ += tokens;
    group.clear();
  };
  documents_.reserve(static_cast<size_t>(total));
  std::optional<Permutation> order;
  if (o.shuffle && total > 0) order.emplace(total, o.seed, kDocumentOrder);
  for (int64_t i = 0; i < total; ++i) {
    const int64_t document = order ? (*order)(i) : i;
    const int64_t length = dataset.document_begin(document + 1) - dataset.document_begin(document);
    num_empty += length == 0;
    if (length == 0) continue;
    if (length > longest_length) longest = document, longest_length = length;
    if (length > o.seq_len) {
      ++num_dropped_;
      num_dropped_tokens_ += length;
      continue;
    }
    group.push_back({static_cast<uint32_t>(document), static_cast<int32_t>(length), 0});
    if (static_cast<int64_t>(group.size()) == o.group_documents) finish_group();
  }
  if (!group.empty()) finish_group();
  if (num_dropped_ > 0 && (!o.drop_long || documents_.empty()))
    base::fail(
        "{}: {} of {} longer than a sequence of {} tokens; the longest, document {}, has {}. "
        "train.seq_len = {} has room for all; data.packing = {}",
        dataset.prefix(), num_dropped_, base::counted(total - num_empty, "document is", "documents are"),
        o.seq_len, longest, longest_length, longest_length,
        o.drop_long ? "\"stream\" cuts them" : "\"whole_drop\" leaves them out, \"stream\" cuts them");
  if (documents_.empty()) base::fail("{}: no document holds a token", dataset.prefix());
}

std::span<const uint32_t> WholeDocuments::documents(int64_t sequence_idx) const {
  PLEAT_CHECK(sequence_idx >= 0 && sequence_idx < num_sequences(), "sequence {} of {}", sequence_idx,
              num_sequences());
  const auto begin = static_cast<size_t>(begin_[static_cast<size_t>(sequence_idx)]);
  const auto end = static_cast<size_t>(begin_[static_cast<size_t>(sequence_idx) + 1]);
  return std::span(documents_).subspan(begin, end - begin);
}

std::string WholeDocuments::text() const {
  return fmt::format("{} in {}, {:.1f} % filled{}", base::counted(num_documents(), "whole document"),
                     base::counted(num_sequences(), "sequence"), 100 * filled(),
                     num_dropped_ > 0 ? fmt::format("; {} left out as longer than a sequence ({})",
                                                    num_dropped_, base::counted(num_dropped_tokens_, "token"))
                                      : "");
}

double WholeDocuments::filled() const {
  return static_cast<double>(num_tokens_) /
         (static_cast<double>(num_sequences()) * static_cast<double>(seq_len_));
}

}  // namespace pleat::data
