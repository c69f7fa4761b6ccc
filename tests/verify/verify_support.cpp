#include "verify/verify_support.h"

#include <fmt/format.h>

#include "base/rng.h"
#include "verify/grid.h"

namespace pleat::verify {
namespace {

const char* const kModel = R"(
[model]
vocab_size = 32
hidden_size = 16
num_layers = 2
num_heads = 8
num_kv_heads = 8
head_dim = 4
dtype = "float64"
[moe]
num_experts = 8
top_k = 2
ffn_hidden_size = 8
[train]
num_microbatches = 4
seq_len = 16
[optimizer]
clip = 0.5
)";

}  // namespace

config::Config small_model(const std::vector<std::string>& sets) {
  return config::resolve(config::parse(kModel, sets, "verify.toml"));
}

model::Mesh mesh_of(const Axes& a) {
  model::Mesh m;
  m.tp = a.tp, m.cp = a.cp, m.dp = a.dp, m.pp = a.pp, m.ep = a.ep, m.etp = a.etp;
  m.edp = a.tp * a.cp * a.dp / (a.ep * a.etp);
  return m;
}

std::string text_of(const model::Mesh& m) {
  return fmt::format("tp {} cp {} dp {} pp {} ep {} etp {} edp {} {} {}", m.tp, m.cp, m.dp, m.pp, m.ep, m.etp,
                     m.edp, m.dispatcher == model::Dispatcher::AllGather ? "allgather" : "alltoall",
                     model::name_of(m.context));
}

LayoutRun run_on(const config::Config& c, const model::Mesh& m, const RunOptions& options) {
  return run_layout(c, m, even_roles(c, m), options);
}

std::string difference(const config::Config& c, const LayoutRun& reference, const LayoutRun& run,
                       double bound) {
  return compare(reference, run, model::make_parameters(c)).verdict(bound);
}

Batch packed_batch(const config::Config& c, const std::vector<Packing>& packings) {
  Batch batch;
  const int64_t length = c.train.seq_len;
  int64_t index = 0;
  for (const Packing& packing : packings) {
    runtime::Microbatch& m = batch.microbatches.emplace_back();
    const auto row = [&](int32_t token, int32_t label, int32_t start, bool valid, bool counts) {
      const int32_t t = static_cast<int32_t>(m.tokens.size());
      m.tokens.push_back(token);
      m.labels.push_back(label);
      m.doc_start.push_back(start);
      m.positions.push_back(t - start);
      m.valid.push_back(valid);
      m.loss_mask.push_back(counts);
      m.token_index.push_back(index++);
      batch.loss_tokens += counts;
      batch.valid_tokens += valid;
    };
    for (size_t d = 0; d < packing.lengths.size(); ++d) {
      const base::RandomStream random(static_cast<uint64_t>(packing.seeds[d]), base::RandomUse::Test, 7, 0);
      const auto draw = [&](int t) {
        return static_cast<int32_t>(random.uniform(static_cast<uint64_t>(t)) *
                                    static_cast<double>(c.model.vocab_size));
      };
      const int32_t start = static_cast<int32_t>(m.tokens.size());
      for (int t = 0; t < packing.lengths[d]; ++t) row(draw(2 * t), draw(2 * t + 1), start, true, t % 3 != 1);
      ++batch.documents;
    }
    const int32_t end = static_cast<int32_t>(m.tokens.size());
    for (int64_t t = end; t < length; ++t) row(0, 0, end, false, false);
  }
  return batch;
}

Batch without_loss(Batch batch) {
  for (runtime::Microbatch& m : batch.microbatches)
    std::fill(m.loss_mask.begin(), m.loss_mask.end(), uint8_t{0});
  batch.loss_tokens = 0;
  return batch;
}

}  // namespace pleat::verify
