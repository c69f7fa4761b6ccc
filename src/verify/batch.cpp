#include "verify/batch.h"

#include "base/rng.h"
#include "runtime/step_inputs.h"
#include "train/learning_rate.h"

namespace pleat::verify {

Batch random_batch(const config::Config& c, uint64_t seed, int64_t step) {
  Batch batch;
  const int64_t length = c.train.seq_len, sequences = c.train.micro_batch;
  for (int64_t mb = 0; mb < c.train.num_microbatches; ++mb) {
    runtime::Microbatch& out = batch.microbatches.emplace_back();
    const base::RandomStream random(seed, base::RandomUse::Test, static_cast<uint64_t>(step),
                                    static_cast<uint32_t>(mb));
    uint64_t draw = 0;
    const auto uniform = [&] { return random.uniform(draw++); };
    for (int64_t s = 0; s < sequences; ++s) {
      int64_t start = 0;
      for (int64_t t = 0; t < length; ++t) {
        if (t > 0 && uniform() < 3.0 / static_cast<double>(length) && c.data.isolate_documents) start = t;
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

std::vector<int32_t> pieces_of(const config::Config& c, const model::Mesh& layout) {
  std::vector<int32_t> piece(static_cast<size_t>(c.train.micro_batch * c.train.seq_len));
  for (int64_t r = 0; r < layout.cp; ++r) {
    const std::vector<int32_t> rows = runtime::context_rows(c, layout, r);
    const size_t own = rows.size() / static_cast<size_t>(layout.tp);
    for (size_t i = 0; i < rows.size(); ++i)
      piece[static_cast<size_t>(rows[i])] =
          static_cast<int32_t>(r * layout.tp + static_cast<int64_t>(i / own));
  }
  return piece;
}

void write_batch(interpret::Executor& executor, const config::Config& c, const model::Mesh& mesh,
                 const runtime::RankPlace& place, const Batch& batch, int64_t step, double previous_norm) {
  const runtime::InputRows rows(c, mesh, place);
  for (int64_t i = 0; i < c.train.num_microbatches / mesh.dp; ++i)
    rows.write(executor, i, batch.microbatches[size_t(i * mesh.dp + place.at(program::Group::Data))]);
  runtime::BatchCounts counts;
  counts.loss_tokens = batch.loss_tokens;
  counts.valid_tokens = batch.valid_tokens;
  counts.documents = batch.documents;
  runtime::write_norm(executor, counts, c.train.num_microbatches);
  runtime::write_rng(executor, c.train.seed, step);
  runtime::write_hyper(executor, train::learning_rate(c, step), step, previous_norm);
}

}  // namespace pleat::verify
