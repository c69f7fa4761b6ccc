// Packed documents neither see each other nor lose tokens when ranks share a sequence.
#include <algorithm>
#include <numeric>

#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

const std::vector<int> kLengths = {4, 3, 5, 1, 9};  // 22 of 24 rows

std::vector<model::Mesh> packed_meshes() {
  std::vector<model::Mesh> out;
  for (const int cp : {1, 2, 4})
    for (const int tp : {1, 2})
      for (const auto context :
           {model::ContextKind::AllGather, model::ContextKind::AllToAll, model::ContextKind::Ring}) {
        if (cp == 1 && context != model::ContextKind::AllGather) continue;
        out.push_back(mesh_of({tp, cp, 1, 1, tp * cp > 1 ? 2 : 1, 1}));
        out.back().context = context;
      }
  return out;
}

void expect_no_leak(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"train.num_microbatches=1", "train.seq_len=24"};
  all.insert(all.end(), sets.begin(), sets.end());
  const config::Config c = small_model(all);
  const Batch batch = packed_batch(c, {{kLengths, {1, 2, 3, 4, 5}}});
  for (const model::Mesh& mesh : packed_meshes()) {
    SCOPED_TRACE(text_of(mesh));
    RunOptions options;
    options.num_steps = 1;
    options.taps = {"x_out"};
    options.routing = model::RoutingUse::Record;
    options.batches = {batch};
    const StepResults first = run_on(c, mesh, options).steps[0];
    options.routing = model::RoutingUse::Replay;
    options.replay = {first.routing};
    ASSERT_EQ(options.replay.front().size(), 2u);
    int begin = 0;
    for (const int length : kLengths) {
      // The second token of the document, of a single one the only one.
      const int changed = begin + std::min(1, length - 1);
      options.batches = {batch};
      int32_t& token = options.batches[0].microbatches[0].tokens[size_t(changed)];
      token = (token + 1) % static_cast<int32_t>(c.model.vocab_size);
      const StepResults second = run_on(c, mesh, options).steps[0];
      for (const int l : {0, 1}) {
        const std::string name = fmt::format("mb0.L{}.x_out", l);
        const Tensor &a = first.taps.at(name), &b = second.taps.at(name);
        ASSERT_EQ(a.size(), size_t(24 * 16));
        for (int t = 0; t < 24; ++t) {
          const bool same = std::equal(a.begin() + t * 16, a.begin() + (t + 1) * 16, b.begin() + t * 16);
          const bool sees = t >= changed && t < begin + length;
          EXPECT_EQ(same, !sees) << name << " row " << t << " after a change of row " << changed;
        }
      }
      begin += length;
    }
  }
}

TEST(PackedDocuments, DocumentsDoNotSeeEachOther) { expect_no_leak({"model.dtype=\"float32\""}); }
TEST(PackedDocuments, DocumentsDoNotSeeEachOtherInDouble) { expect_no_leak({}); }
TEST(PackedDocuments, LatentDocumentsDoNotSeeEachOther) {
  expect_no_leak({"model.dtype=\"float32\"", "model.attention=\"mla\"", "model.q_lora_rank=12",
                  "model.kv_lora_rank=8", "model.qk_nope_head_dim=4", "model.qk_rope_head_dim=4",
                  "model.v_head_dim=4", "model.num_kv_heads=", "model.head_dim="});
}

TEST(PackedSums, PackedLossAndGradientsAreThoseOfTheDocuments) {
  const std::vector<std::string> losses = {"moe.load_balancing=[\"seq_aux\"]", "moe.aux_coef=[0.1]",
                                           "moe.z_coef=0.01", "optimizer.clip=0"};
  const auto model_of = [&](int microbatches, int seq_len) {
    std::vector<std::string> sets = losses;
    sets.push_back(fmt::format("train.num_microbatches={}", microbatches));
    sets.push_back(fmt::format("train.seq_len={}", seq_len));
    return small_model(sets);
  };
  const Batch whole = packed_batch(model_of(1, 24), {{kLengths, {1, 2, 3, 4, 5}}});

  // One by one, each counted against all.
  std::map<std::string, Tensor> sum;
  double loss = 0;
  for (size_t d = 0; d < kLengths.size(); ++d) {
    const config::Config c = model_of(1, kLengths[d]);
    RunOptions options;
    options.num_steps = 1;
    options.batches = {packed_batch(c, {{{kLengths[d]}, {static_cast<int>(d) + 1}}})};
    const int64_t counted = options.batches[0].loss_tokens;
    options.batches[0].loss_tokens = whole.loss_tokens;
    options.batches[0].valid_tokens = whole.valid_tokens;
    options.batches[0].documents = whole.documents;
    const StepResults step = run_on(c, {}, options).steps[0];
    loss += step.loss * static_cast<double>(counted) / static_cast<double>(whole.loss_tokens);
    for (const auto& [name, gradient] : step.gradients) {
      Tensor& to = sum[name];
      to.resize(gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) to[i] += gradient[i];
    }
  }

  const auto expect_sum = [&](const config::Config& c, const Batch& batch, const model::Mesh& mesh) {
    SCOPED_TRACE(text_of(mesh) + fmt::format(", {} microbatches", batch.microbatches.size()));
    ASSERT_EQ(batch.loss_tokens, whole.loss_tokens);
    ASSERT_EQ(batch.documents, whole.documents);
    RunOptions options;
    options.num_steps = 1;
    options.batches = {batch};
    const StepResults step = run_on(c, mesh, options).steps[0];
    EXPECT_NEAR(step.loss, loss, 1e-12);
    for (const auto& [name, gradient] : sum) {
      Tensor gap = step.gradients.at(name);
      for (size_t i = 0; i < gap.size(); ++i) gap[i] -= gradient[i];
      EXPECT_LT(length_of(gap) / length_of(gradient), 1e-10) << name;
    }
  };
  const config::Config one = model_of(1, 24), two = model_of(2, 16);
  const Batch halves = packed_batch(two, {{{4, 3, 5}, {1, 2, 3}}, {{1, 9}, {4, 5}}});
  for (const model::Mesh& mesh : packed_meshes()) {
    expect_sum(one, whole, mesh);
    expect_sum(two, halves, mesh);
  }
  expect_sum(two, halves, mesh_of({2, 2, 2, 1, 4, 1}));
  expect_sum(two, halves, mesh_of({1, 1, 2, 2, 2, 1}));
}

}  // namespace
}  // namespace pleat::verify
