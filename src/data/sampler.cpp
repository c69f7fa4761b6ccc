#include "data/sampler.h"

#include <algorithm>
#include <limits>

#include "base/checked.h"
#include "base/counted.h"
#include "base/error.h"
#include "data/permutation.h"

namespace pleat::data {

SampleStorage::SampleStorage(int64_t num_samples, int64_t seq_len)
    : num_samples_(num_samples), seq_len_(seq_len) {
  PLEAT_CHECK(num_samples >= 0 && seq_len >= 0);
  const size_t count = static_cast<size_t>(base::checked_mul(num_samples, seq_len, "tokens of a batch"));
  for (auto* array : {&tokens_, &labels_, &doc_start_, &positions_}) array->resize(count);
  for (auto* array : {&loss_mask_, &valid_}) array->resize(count);
}

Sample SampleStorage::sample(int64_t sample_idx) {
  PLEAT_CHECK(sample_idx >= 0 && sample_idx < num_samples_, "sample {} of {}", sample_idx, num_samples_);
  const auto part = [&](auto& array) {
    return std::span(array).subspan(static_cast<size_t>(sample_idx * seq_len_),
                                    static_cast<size_t>(seq_len_));
  };
  return {part(tokens_), part(labels_), part(doc_start_), part(positions_), part(loss_mask_), part(valid_)};
}

Packing packing_of(std::string_view name) {
  if (name == "stream") return Packing::Stream;
  if (name == "whole") return Packing::Whole;
  if (name == "whole_drop") return Packing::WholeDrop;
  base::fail("\"{}\" is no way of packing; known are stream, whole and whole_drop", name);
}

Sampler::Sampler(const IndexedDataset& dataset, const SamplerOptions& options)
    : dataset_(dataset), options_(options) {
  if (options.seq_len < 1 || options.seq_len >= std::numeric_limits<int32_t>::max())
    base::fail("sequence length {} must lie between 1 and 2147483646", options.seq_len);
  if (options.packing != Packing::Stream) {
    if (!options.isolate_documents) base::fail("whole documents need isolate_documents");
    whole_ = std::make_shared<const WholeDocuments>(
        dataset, WholeDocuments::Options{.seq_len = options.seq_len,
                                         .seed = options.seed,
                                         .shuffle = options.shuffle,
                                         .drop_long = options.packing == Packing::WholeDrop});
    num_samples_ = whole_->num_sequences();
    return;
  }
  if (dataset.num_tokens() < options.seq_len + 1)
    base::fail("{}: {} too few: one sample of sequence length {} needs {} (one more for the last label)",
               dataset.prefix(), base::counted(dataset.num_tokens(), "token is", "tokens are"),
               options.seq_len, options.seq_len + 1);
  num_samples_ = (dataset.num_tokens() - 1) / options.seq_len;
  if (options.shuffle && num_samples_ > Permutation::kMaxSize)
    base::fail("{}: {} samples in an epoch; shuffling reaches up to 2^48", dataset.prefix(), num_samples_);
}

int64_t Sampler::num_tokens_per_epoch() const {
  return whole_ ? whole_->num_tokens() : num_samples_ * options_.seq_len;
}

void Sampler::check(const DataPosition& position) const {
  if (position.epoch < 0 || position.next_sample < 0 || position.next_sample >= num_samples_)
    base::fail("{}: data position (epoch {}, sample {}) is impossible: an epoch has {} samples of length {}",
               dataset_.prefix(), position.epoch, position.next_sample, num_samples_, options_.seq_len);
}

int64_t Sampler::window_at(const DataPosition& position) const {
  check(position);
  if (!options_.shuffle) return position.next_sample;
  return Permutation(num_samples_, options_.seed, position.epoch)(position.next_sample);
}

DataPosition Sampler::advanced(const DataPosition& position, int64_t num_samples) const {
  check(position);
  PLEAT_CHECK(num_samples >= 0);
  const int64_t sample = base::checked_add(position.next_sample, num_samples, "data position");
  return {base::checked_add(position.epoch, sample / num_samples_, "data epoch"), sample % num_samples_};
}

void Sampler::next(DataPosition& position, Sample& sample) const {
  read(position, sample);
  position = advanced(position, 1);
}

void Sampler::read(const DataPosition& position, Sample& sample) const {
  const size_t length = static_cast<size_t>(options_.seq_len);
  PLEAT_CHECK(sample.tokens.size() == length && sample.labels.size() == length &&
              sample.doc_start.size() == length && sample.positions.size() == length &&
              sample.loss_mask.size() == length && sample.valid.size() == length);

  if (whole_) return read_whole(window_at(position), sample);
  const int64_t first = window_at(position) * options_.seq_len;
  dataset_.read(first, sample.tokens);
  std::copy(sample.tokens.begin() + 1, sample.tokens.end(), sample.labels.begin());
  dataset_.read(first + options_.seq_len, sample.labels.last(1));
  std::fill(sample.valid.begin(), sample.valid.end(), uint8_t{1});
  if (dataset_.has_loss_mask())
    dataset_.read_loss_mask(first + 1, sample.loss_mask);  // of the labels
  else
    std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), uint8_t{1});

  if (!options_.isolate_documents) {
    std::fill(sample.doc_start.begin(), sample.doc_start.end(), 0);
    for (size_t j = 0; j < length; ++j) sample.positions[j] = static_cast<int32_t>(j);
    return;
  }

  int64_t document = dataset_.document_of(first);
  int64_t document_end = dataset_.document_begin(document + 1);
  int32_t start = 0;
  for (size_t j = 0; j < length; ++j) {
    const int64_t token = first + static_cast<int64_t>(j);
    if (token == document_end) start = static_cast<int32_t>(j);
    // A loop, for empty documents; bounded, for a file that changes under us.
    while (token >= document_end && document + 1 < dataset_.num_documents())
      document_end = dataset_.document_begin(++document + 1);
    sample.doc_start[j] = start;
    sample.positions[j] = static_cast<int32_t>(j) - start;
    if (token + 1 == document_end) sample.loss_mask[j] = 0;
  }
}

void Sampler::read_whole(int64_t sequence_idx, Sample& sample) const {
  size_t used = 0;
  for (const uint32_t document : whole_->documents(sequence_idx)) {
    const int64_t first = dataset_.document_begin(document);
    const auto length = static_cast<size_t>(dataset_.document_begin(document + 1) - first);
    // For a file that changes under us.
    PLEAT_CHECK(length > 0 && length <= sample.tokens.size() - used);
    const std::span<int32_t> tokens = sample.tokens.subspan(used, length);
    dataset_.read(first, tokens);
    std::copy(tokens.begin() + 1, tokens.end(), sample.labels.begin() + static_cast<std::ptrdiff_t>(used));
    const std::span<uint8_t> mask = sample.loss_mask.subspan(used, length);
    if (dataset_.has_loss_mask())
      dataset_.read_loss_mask(first + 1, mask.first(length - 1));  // of the labels
    else
      std::fill(mask.begin(), mask.end(), uint8_t{1});
    mask[length - 1] = 0;
    sample.labels[used + length - 1] = 0;
    for (size_t j = 0; j < length; ++j) {
      sample.doc_start[used + j] = static_cast<int32_t>(used);
      sample.positions[used + j] = static_cast<int32_t>(j);
      sample.valid[used + j] = 1;
    }
    used += length;
  }
  for (size_t j = used; j < sample.tokens.size(); ++j) {
    sample.tokens[j] = sample.tokens[(j - used) % used];
    sample.labels[j] = 0;
    sample.doc_start[j] = static_cast<int32_t>(used);
    sample.positions[j] = static_cast<int32_t>(j - used);
    sample.loss_mask[j] = sample.valid[j] = 0;
  }
}

}  // namespace pleat::data
