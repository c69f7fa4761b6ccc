// Several datasets as one stream of samples, by weight.
//
// Sample number t (from 0) comes from the source i with the largest w_i * max(t, 1) - taken_i, where taken_i
// is how many samples source i has given and the weights add up to 1; of equals the first wins. So after
// every sample each source is as near to its share as whole samples allow. Product and difference are each
// rounded to double, so ties fall the same way everywhere. Each source runs through epochs of its own, in its
// own order. One dataset is a mixture of one.
//
// All state is a MixturePosition: a stored one continues exactly.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/sampler.h"

namespace pleat::data {

// Where training stands in the data; goes into checkpoints. What a source has given follows from its
// position.
struct MixturePosition {
  std::vector<DataPosition> sources = {};
  bool operator==(const MixturePosition&) const = default;
};

class Mixture {
 public:
  // One weight above 0 per dataset; only ratios count. Source i is shuffled with options.seed + i. Throws
  // when a dataset is too small for one sample.
  Mixture(std::vector<std::unique_ptr<IndexedDataset>> datasets, const std::vector<double>& weights,
          const SamplerOptions& options);

  size_t num_sources() const { return sources_.size(); }
  const IndexedDataset& dataset(size_t source_idx) const { return *sources_[source_idx].dataset; }
  const Sampler& sampler(size_t source_idx) const { return sources_[source_idx].sampler; }
  double weight(size_t source_idx) const { return sources_[source_idx].weight; }  // they add up to 1
  int64_t seq_len() const { return sources_[0].sampler.options().seq_len; }

  MixturePosition start() const { return {std::vector<DataPosition>(sources_.size())}; }
  // Samples a source has given, and all have.
  int64_t taken(const MixturePosition& position, size_t source_idx) const;
  int64_t num_taken(const MixturePosition& position) const;
  // The source of the next sample.
  size_t pick(const MixturePosition& position) const;

  // Writes the next sample and moves the position on; returns its source. Allocates nothing; may run in many
  // threads. Throws when the position is impossible for these datasets.
  size_t next(MixturePosition& position, Sample& sample) const;
  // Moves the position on as next does, without reading.
  void skip(MixturePosition& position) const;

 private:
  struct Source {
    std::unique_ptr<IndexedDataset> dataset;
    Sampler sampler;
    double weight;
  };
  std::vector<Source> sources_;
};

// The rule by itself: which source gives sample number sum(taken).
size_t blend_pick(std::span<const double> weights, std::span<const int64_t> taken);

}  // namespace pleat::data
