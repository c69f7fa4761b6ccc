// Layouts against one rank, in double.
#include <gtest/gtest.h>

#include "verify/grid.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

config::Config make(const std::vector<std::string>& sets = {}) {
  std::vector<std::string> all = {"model.qk_norm=true",       "moe.shared_ffn_hidden_size=16",
                                  "moe.ffn_hidden_size=24",   "moe.load_balancing=[\"aux\",\"seq_aux\"]",
                                  "moe.aux_coef=[0.01,0.02]", "moe.z_coef=0.001",
                                  "train.micro_batch=2",      "train.loss_chunk=24"};
  all.insert(all.end(), sets.begin(), sets.end());
  return small_model(all);
}

void expect_equal(const config::Config& c, const model::Mesh& mesh, double bound = 1e-10,
                  bool bitwise = false) {
  const LayoutRun reference = run_layout(c, {}, {}, {});
  const LayoutRun run = run_layout(c, mesh, even_roles(c, mesh), {});
  const Comparison result = compare(reference, run, model::make_parameters(c));
  EXPECT_EQ(result.verdict(bound), "") << "worst " << result.worst();
  EXPECT_TRUE(!bitwise || result.bitwise);
}

model::Mesh mesh(int tp, int cp, int dp, int ep, int etp) { return mesh_of({tp, cp, dp, 1, ep, etp}); }

TEST(Layout, Data) { expect_equal(make(), mesh(1, 1, 2, 1, 1)); }
TEST(Layout, Tensor) { expect_equal(make(), mesh(2, 1, 1, 1, 1)); }
TEST(Layout, ExpertAllToAll) { expect_equal(make(), mesh(1, 1, 2, 2, 1)); }
TEST(Layout, ExpertAllGather) {
  model::Mesh m = mesh(1, 1, 2, 2, 1);
  m.dispatcher = model::Dispatcher::AllGather;
  expect_equal(make(), m);
}
TEST(Layout, ExpertTensor) { expect_equal(make(), mesh(2, 1, 2, 2, 2)); }
TEST(Layout, ContextAllToAll) {
  model::Mesh m = mesh(1, 2, 1, 1, 1);
  m.context = model::ContextKind::AllToAll;
  expect_equal(make(), m);
}
TEST(Layout, ContextAllGather) { expect_equal(make(), mesh(1, 2, 1, 1, 1)); }
TEST(Layout, Folded) { expect_equal(make(), mesh(2, 2, 2, 4, 2)); }
TEST(Layout, Interleaved) {
  model::Mesh m;
  m.pp = 2, m.vpp = 2;
  expect_equal(make({"model.num_layers=4"}), m, 0, true);
}
TEST(Layout, TiedPipeline) {
  model::Mesh m = mesh(2, 1, 2, 2, 1);
  m.pp = 2;
  expect_equal(make({"model.tie_embeddings=true"}), m);
}
TEST(Layout, Latent) {
  model::Mesh m = mesh(2, 1, 2, 2, 2);
  m.pp = 2;
  for (const char* rank : {"model.q_lora_rank=12", "model.q_lora_rank=0"})
    expect_equal(make({"model.attention=\"mla\"", rank, "model.kv_lora_rank=8", "model.qk_nope_head_dim=8",
                       "model.qk_rope_head_dim=4", "model.v_head_dim=6",
                       "model.num_kv_heads=", "model.head_dim=", "model.qk_norm="}),
                 m);
}
TEST(Layout, MultiTokenPrediction) {
  for (const char* tie : {"model.tie_embeddings=false", "model.tie_embeddings=true"}) {
    model::Mesh m = mesh(2, 2, 1, 2, 1);
    m.pp = 2;
    expect_equal(make({"model.num_mtp_layers=2", tie}), m);
    expect_equal(make({"model.num_mtp_layers=1", tie}), mesh(1, 1, 2, 2, 1));
  }
}
TEST(Layout, Recomputed) {
  model::Mesh m = mesh(2, 1, 2, 2, 1);
  m.pp = 2;
  expect_equal(make({"recompute.modules=[\"layer\"]"}), m);
  expect_equal(make({"recompute.modules=[\"experts\",\"core_attention\",\"norm\"]"}), m);
}
TEST(Layout, Frozen) {
  model::Mesh m = mesh(2, 1, 2, 2, 1);
  m.pp = 2;
  expect_equal(make({"optimizer.freeze=[\"attention\",\"router\"]"}), m);
}
// Every kind of parameter and every way a row can be special, under both kinds of context.
TEST(Layout, Features) {
  model::Mesh m = mesh(2, 2, 1, 2, 1);
  m.pp = 2;
  expect_equal(make({"model.qkv_bias=true", "model.attn_out_bias=true", "model.mlp_bias=true",
                     "model.leading_dense_layers=1", "model.ffn_hidden_size=24", "moe.router_bias=true",
                     "moe.expert_bias=true", "model.attention_sinks=true", "model.sliding_window=5",
                     "model.num_kv_heads=2", "moe.shared_gate=true"}),
               m);
  m.context = model::ContextKind::AllToAll;
  expect_equal(make({"model.qkv_bias=true", "model.sliding_window=5", "moe.score=\"sigmoid\"",
                     "moe.load_balancing=[\"bias\",\"seq_aux\"]", "moe.aux_coef=[0.02]", "moe.num_groups=4",
                     "moe.group_topk=2", "moe.scaling_factor=2.5", "moe.input_jitter=0.01"}),
               m);
}
TEST(Layout, CountsOverMicrobatchesAndLayers) {
  expect_equal(make({"moe.load_balancing=[\"global_aux\"]", "moe.aux_coef=[0.05]",
                     "moe.global_aux_form=\"exact\"", "train.order=\"gpipe\""}),
               mesh(2, 2, 2, 2, 1));
  expect_equal(make({"moe.load_balancing=[\"aux\"]", "moe.aux_coef=[0.05]", "moe.aux_convention=\"hf\""}),
               mesh(2, 2, 2, 4, 1));
}
TEST(Layout, VocabularyThatDoesNotDivide) {
  expect_equal(make({"model.vocab_size=61"}), mesh(4, 1, 1, 1, 1));
  expect_equal(make({"model.vocab_size=61", "model.tie_embeddings=true"}), mesh(2, 1, 2, 2, 1));
}
TEST(Layout, PaddingToken) {
  model::Mesh m = mesh(2, 1, 2, 2, 1);
  m.pp = 2;
  for (const char* tie : {"model.tie_embeddings=false", "model.tie_embeddings=true"})
    expect_equal(make({"model.padding_token=20", "model.num_mtp_layers=1", tie}), m);
}
TEST(Layout, Pipeline) {
  model::Mesh m;
  m.pp = 2;
  expect_equal(make(), m, 0, true);
}

}  // namespace
}  // namespace pleat::verify
