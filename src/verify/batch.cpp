#include "verify/batch.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "train/feed.h"
#include "train/learning_rate.h"

namespace pleat::verify {

Batch random_batch(const config::Config& c, uint64_t seed, int64_t step) {
  Batch batch;
  const int64_t length = c.train.seq_len, sequences = c.train.micro_batch;
  for (int64_t mb = 0; mb < c.train.num_microbatches; ++mb) {
    Microbatch& out = batch.microbatches.emplace_back();
    const base::RandomStream random(seed, base::RandomUse::Test, static_cast<uint64_t>(step),
                                    static_cast<uint32_t>(mb));
    uint64_t draw = 0;
    const auto uniform = [&] { return random.uniform(draw++); };
    for (int64_t s = 0; s < sequences; ++s) {
      int64_t start = 0;
      for (int64_t t = 0; t < length; ++t) {
        if (t > 0 && uniform() < 3.0 / static_cast<double>(length)) start = t;
        const int32_t row = static_cast<int32_t>(s * length + t);
        out.tokens.push_back(static_cast<int32_t>(uniform() * static_cast<double>(c.model.vocab_size)));
        out.labels.push_back(static_cast<int32_t>(uniform() * static_cast<double>(c.model.vocab_size)));
        out.doc_start.push_back(static_cast<int32_t>(s * length + start));
        out.positions.push_back(static_cast<int32_t>(t - start));
        const bool valid = t + 2 < length || s + 1 < sequences || mb % 2 == 0;
        out.valid.push_back(valid);
        out.loss_mask.push_back(valid && uniform() > 0.15);
        out.token_index.push_back((step * c.train.num_microbatches + mb) * sequences * length + row);
        batch.documents += start == t;
        batch.loss_tokens += out.loss_mask.back();
        batch.valid_tokens += valid;
      }
    }
  }
  return batch;
}

std::vector<int32_t> context_rows(const config::Config& c, const model::Mesh& mesh, int64_t rank) {
  const int64_t length = c.train.seq_len;
  std::vector<int32_t> rows;
  for (int64_t s = 0; s < c.train.micro_batch; ++s) {
    if (mesh.cp == 1) {
      for (int64_t t = 0; t < length; ++t) rows.push_back(static_cast<int32_t>(s * length + t));
      continue;
    }
    const int64_t chunk = length / (2 * mesh.cp);
    for (const int64_t part : {rank, 2 * mesh.cp - 1 - rank})
      for (int64_t t = part * chunk; t < (part + 1) * chunk; ++t)
        rows.push_back(static_cast<int32_t>(s * length + t));
  }
  return rows;
}

std::vector<int32_t> pieces_of(const config::Config& c, const model::Mesh& layout) {
  std::vector<int32_t> piece(static_cast<size_t>(c.train.micro_batch * c.train.seq_len));
  for (int64_t r = 0; r < layout.cp; ++r) {
    const std::vector<int32_t> rows = context_rows(c, layout, r);
    const size_t own = rows.size() / static_cast<size_t>(layout.tp);
    for (size_t i = 0; i < rows.size(); ++i)
      piece[static_cast<size_t>(rows[i])] =
          static_cast<int32_t>(r * layout.tp + static_cast<int64_t>(i / own));
  }
  return piece;
}

void write_batch(interpret::Executor& executor, const config::Config& c, const model::Mesh& mesh,
                 const RankPlace& place, const Batch& batch, int64_t step) {
  using program::Group;
  const int64_t all = c.train.micro_batch * c.train.seq_len;
  const std::vector<int32_t> rows = context_rows(c, mesh, place.at(Group::Context));
  const int64_t own = static_cast<int64_t>(rows.size()) / mesh.tp, first = own * place.at(Group::Tensor);
  std::vector<int32_t> inverse;  // gathered position -> natural row
  for (int64_t r = 0; r < mesh.cp; ++r)
    for (const int32_t row : context_rows(c, mesh, r)) inverse.push_back(row);
  std::vector<int32_t> order(static_cast<size_t>(all));
  for (size_t i = 0; i < inverse.size(); ++i) order[size_t(inverse[i])] = static_cast<int32_t>(i);

  const int64_t local = c.train.num_microbatches / mesh.dp;
  for (int64_t i = 0; i < local; ++i) {
    const Microbatch& m = batch.microbatches[size_t(i * mesh.dp + place.at(Group::Data))];
    const auto data = [&](const char* what) { return executor.data(fmt::format("mb{}.{}", i, what)); };
    const auto pick = [&](const char* what, const auto& from, int64_t begin, int64_t count) {
      using T = typename std::decay_t<decltype(from)>::value_type;
      T* to = static_cast<T*>(data(what));
      for (int64_t t = 0; t < count; ++t) to[t] = from[size_t(rows[size_t(begin + t)])];
    };
    const int64_t n = static_cast<int64_t>(rows.size());
    pick("tokens", m.tokens, 0, n);
    pick("labels", m.labels, 0, n);
    pick("loss_mask", m.loss_mask, 0, n);
    pick("positions", m.positions, 0, n);
    pick("valid", m.valid, first, own);
    pick("token_index", m.token_index, first, own);
    std::memcpy(data("doc_start"), m.doc_start.data(), m.doc_start.size() * sizeof(int32_t));
    if (mesh.tp * mesh.cp == 1) continue;
    std::memcpy(data("all_valid"), m.valid.data(), m.valid.size());
    std::memcpy(data("order"), order.data(), order.size() * sizeof(int32_t));
    std::memcpy(data("inverse_order"), inverse.data(), inverse.size() * sizeof(int32_t));
    std::memcpy(data("context_row"), rows.data(), rows.size() * sizeof(int32_t));
    if (mesh.cp > 1 && c.model.num_mtp_layers > 0) {
      std::memcpy(data("all_tokens"), m.tokens.data(), m.tokens.size() * sizeof(int32_t));
      std::memcpy(data("all_labels"), m.labels.data(), m.labels.size() * sizeof(int32_t));
      std::memcpy(data("all_loss_mask"), m.loss_mask.data(), m.loss_mask.size());
    }
    std::memcpy(data("own_row"), rows.data() + first, static_cast<size_t>(own) * sizeof(int32_t));
  }
  train::BatchCounts counts;
  counts.loss_tokens = batch.loss_tokens;
  counts.valid_tokens = batch.valid_tokens;
  counts.documents = batch.documents;
  train::write_norm(executor, counts, c.train.num_microbatches);
  train::write_rng(executor, c.train.seed, step);
  train::write_hyper(executor, train::learning_rate(c, step), step);
}

}  // namespace pleat::verify
