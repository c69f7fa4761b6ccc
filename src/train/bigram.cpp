#include "train/bigram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/byte_tokenizer.h"

namespace pleat::train {
namespace {

// Calls f(previous, next) for every neighbouring pair of the stream; false, at once, for an id that no byte
// has.
template <class F>
bool for_each_pair(const data::IndexedDataset& dataset, F f) {
  std::vector<int32_t> buffer(1 << 16);
  int32_t previous = -1;
  for (int64_t at = 0; at < dataset.num_tokens();) {
    const int64_t n = std::min<int64_t>(static_cast<int64_t>(buffer.size()), dataset.num_tokens() - at);
    dataset.read(at, {buffer.data(), static_cast<size_t>(n)});
    for (int64_t i = 0; i < n; ++i) {
      if (buffer[static_cast<size_t>(i)] >= data::ByteTokenizer::kVocabSize) return false;
      if (previous >= 0) f(previous, buffer[static_cast<size_t>(i)]);
      previous = buffer[static_cast<size_t>(i)];
    }
    at += n;
  }
  return true;
}

}  // namespace

double bigram_bits_per_byte(const data::IndexedDataset& train, const data::IndexedDataset& valid) {
  constexpr size_t V = data::ByteTokenizer::kVocabSize;
  std::vector<int64_t> pair(V * V), total(V);
  const bool counted = for_each_pair(train, [&](int32_t a, int32_t b) {
    ++pair[static_cast<size_t>(a) * V + static_cast<size_t>(b)], ++total[static_cast<size_t>(a)];
  });
  if (!counted) return 0;
  double bits = 0;
  int64_t bytes = 0;
  const bool priced = for_each_pair(valid, [&](int32_t a, int32_t b) {
    const double p =
        (static_cast<double>(pair[static_cast<size_t>(a) * V + static_cast<size_t>(b)]) + 1.0 / V) /
        (static_cast<double>(total[static_cast<size_t>(a)]) + 1.0);
    bits -= std::log2(p);
    bytes += b < data::ByteTokenizer::kEndOfDocument;
  });
  if (!priced) return 0;
  return bits / static_cast<double>(std::max<int64_t>(bytes, 1));
}

}  // namespace pleat::train
