#include "data/mixture.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"

namespace pleat::data {
namespace {

// The rule over anything indexed; no list is built per sample.
template <class Weight, class Taken>
size_t pick_of(size_t num_sources, int64_t t, const Weight& weight, const Taken& taken) {
  const double steps = static_cast<double>(std::max<int64_t>(t, 1));
  size_t best = 0;
  double best_gap = 0;
  for (size_t i = 0; i < num_sources; ++i) {
    // Rounded before the difference on every machine: one that fuses the two would break ties another way.
    const volatile double due = weight(i) * steps;
    const double gap = due - static_cast<double>(taken(i));
    if (i == 0 || gap > best_gap) {
      best = i;
      best_gap = gap;
    }
  }
  return best;
}

}  // namespace

size_t blend_pick(std::span<const double> weights, std::span<const int64_t> taken) {
  PLEAT_CHECK(!weights.empty() && weights.size() == taken.size());
  int64_t t = 0;
  for (const int64_t n : taken) t = base::checked_add(t, n, "samples taken");
  return pick_of(
      weights.size(), t, [&](size_t i) { return weights[i]; }, [&](size_t i) { return taken[i]; });
}

Mixture::Mixture(std::vector<std::unique_ptr<IndexedDataset>> datasets, const std::vector<double>& weights,
                 const SamplerOptions& options) {
  if (datasets.empty() || datasets.size() != weights.size())
    base::fail("a mixture of {} datasets with {} weights; one for each is needed", datasets.size(),
               weights.size());
  double sum = 0;
  for (const double weight : weights) {
    if (!(weight > 0) || !std::isfinite(weight))
      base::fail("a mixture has the weight {}; a finite number above 0 is needed", weight);
    sum += weight;
  }
  for (size_t i = 0; i < datasets.size(); ++i) {
    SamplerOptions own = options;
    own.seed += i;
    Sampler sampler(*datasets[i], own);
    sources_.push_back({std::move(datasets[i]), sampler, weights[i] / sum});
  }
}

int64_t Mixture::taken(const MixturePosition& position, size_t source_idx) const {
  PLEAT_CHECK(position.sources.size() == sources_.size(), "{} positions for {} sources",
              position.sources.size(), sources_.size());
  const DataPosition& p = position.sources[source_idx];
  return base::checked_add(
      base::checked_mul(p.epoch, sources_[source_idx].sampler.num_samples_per_epoch(), "samples taken"),
      p.next_sample, "samples taken");
}

int64_t Mixture::num_taken(const MixturePosition& position) const {
  int64_t sum = 0;
  for (size_t i = 0; i < sources_.size(); ++i)
    sum = base::checked_add(sum, taken(position, i), "samples taken");
  return sum;
}

size_t Mixture::pick(const MixturePosition& position) const {
  if (sources_.size() == 1) return 0;
  return pick_of(
      sources_.size(), num_taken(position), [&](size_t i) { return sources_[i].weight; },
      [&](size_t i) { return taken(position, i); });
}

size_t Mixture::next(MixturePosition& position, Sample& sample) const {
  PLEAT_CHECK(position.sources.size() == sources_.size(), "{} positions for {} sources",
              position.sources.size(), sources_.size());
  const size_t source_idx = pick(position);
  sources_[source_idx].sampler.next(position.sources[source_idx], sample);
  return source_idx;
}

void Mixture::skip(MixturePosition& position) const {
  const size_t source_idx = pick(position);
  DataPosition& at = position.sources[source_idx];
  at = sources_[source_idx].sampler.advanced(at, 1);
}

}  // namespace pleat::data
