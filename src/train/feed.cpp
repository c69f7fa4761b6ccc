#include "train/feed.h"

namespace pleat::train {

void Feed::read(data::MixturePosition& position, runtime::Microbatch& m, runtime::BatchCounts& counts) const {
  const size_t length = static_cast<size_t>(mixture_.seq_len());
  m.resize(static_cast<size_t>(micro_batch_) * length);
  for (int64_t row = 0; row < micro_batch_; ++row) {
    const size_t begin = static_cast<size_t>(row) * length;
    const auto part = [&](auto& list) { return std::span(list).subspan(begin, length); };
    data::Sample sample{part(m.tokens),    part(m.labels),    part(m.doc_start),
                        part(m.positions), part(m.loss_mask), part(m.valid)};
    const int64_t ordinal = mixture_.num_taken(position);
    mixture_.next(position, sample);
    for (size_t t = 0; t < length; ++t) {
      counts.loss_tokens += m.loss_mask[begin + t];
      counts.valid_tokens += m.valid[begin + t];
      counts.documents += m.valid[begin + t] && m.doc_start[begin + t] == static_cast<int32_t>(t);
      m.doc_start[begin + t] += static_cast<int32_t>(begin);  // rows of a microbatch lie back to back
      m.token_index[begin + t] = ordinal * static_cast<int64_t>(length) + static_cast<int64_t>(t);
    }
    counts.tokens += static_cast<int64_t>(length);
  }
}

void Feed::skip(data::MixturePosition& position) const {
  for (int64_t row = 0; row < micro_batch_; ++row) mixture_.skip(position);
}

void Feed::blank(runtime::Microbatch& m) const {
  const size_t length = static_cast<size_t>(mixture_.seq_len());
  m.resize(static_cast<size_t>(micro_batch_) * length);
  for (size_t i = 0; i < m.tokens.size(); ++i) {
    m.tokens[i] = m.labels[i] = 0;
    m.loss_mask[i] = m.valid[i] = 0;
    m.doc_start[i] = static_cast<int32_t>(i / length * length);
    m.positions[i] = static_cast<int32_t>(i % length);
    m.token_index[i] = static_cast<int64_t>(i);
  }
}

}  // namespace pleat::train
