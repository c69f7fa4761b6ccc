#include "train/feed.h"

#include <fmt/format.h>

#include <algorithm>

namespace pleat::train {

void write_norm(interpret::Executor& executor, const BatchCounts& c, int64_t num_microbatches) {
  double* norm = static_cast<double*>(executor.data("norm"));
  const auto inverse = [](int64_t n) { return 1.0 / static_cast<double>(std::max<int64_t>(n, 1)); };
  norm[0] = inverse(c.loss_tokens);
  norm[1] = inverse(num_microbatches);
  norm[2] = inverse(c.documents);
  norm[3] = inverse(c.valid_tokens);
}

void write_rng(interpret::Executor& executor, int64_t seed, int64_t step) {
  int64_t* rng = static_cast<int64_t*>(executor.data("rng"));
  rng[0] = seed;
  rng[1] = step;
}

void write_hyper(interpret::Executor& executor, double learning_rate, int64_t adam_step) {
  double* hyper = static_cast<double*>(executor.data("hyper"));
  hyper[0] = learning_rate;
  hyper[1] = static_cast<double>(adam_step);
  hyper[2] = hyper[3] = 0;
}

void Feed::load(interpret::Executor& executor, int mb, data::MixturePosition& position,
                BatchCounts& counts) const {
  const size_t length = static_cast<size_t>(mixture_.seq_len());
  const auto at = [&]<class T>(const char* what, T) {
    return static_cast<T*>(executor.data(fmt::format("mb{}.{}", mb, what)));
  };
  int32_t *tokens = at("tokens", int32_t{}), *labels = at("labels", int32_t{}),
          *doc_start = at("doc_start", int32_t{}), *positions = at("positions", int32_t{});
  uint8_t *loss_mask = at("loss_mask", uint8_t{}), *valid = at("valid", uint8_t{});
  int64_t* token_index = at("token_index", int64_t{});
  for (int64_t row = 0; row < micro_batch_; ++row) {
    const size_t begin = static_cast<size_t>(row) * length;
    const auto part = [&](auto* p) { return std::span(p + begin, length); };
    data::Sample sample{part(tokens),    part(labels),    part(doc_start),
                        part(positions), part(loss_mask), part(valid)};
    const int64_t ordinal = mixture_.num_taken(position);
    mixture_.next(position, sample);
    for (size_t t = 0; t < length; ++t) {
      counts.loss_tokens += loss_mask[begin + t];
      counts.valid_tokens += valid[begin + t];
      counts.documents += doc_start[begin + t] == static_cast<int32_t>(t);
      doc_start[begin + t] += static_cast<int32_t>(begin);  // rows of a microbatch lie back to back
      token_index[begin + t] = ordinal * static_cast<int64_t>(length) + static_cast<int64_t>(t);
    }
    counts.tokens += static_cast<int64_t>(length);
  }
}

}  // namespace pleat::train
