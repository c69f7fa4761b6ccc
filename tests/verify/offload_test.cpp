// Offload on thread ranks: the bits of the same layout without it, whatever is in flight between a forward and its
// backward.
#include "base/error.h"
#include "verify/grid.h"
#include "verify/shrink.h"
#include "verify/verify_support.h"

namespace pleat::verify {
namespace {

using Words = std::vector<std::string>;

Words joined_sets(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Words kWide = {"model.dtype=\"float32\"", "model.num_layers=4", "model.num_kv_heads=2",
                     "moe.shared_ffn_hidden_size=8"};
const std::vector<Words> kOffloads = {
    {"offload.modules=[\"layer\"]", "offload.keep_last=0"},
    {"offload.modules=[\"attn_norm\",\"core_attention\",\"mlp_norm\",\"expert_up\",\"activation\"]"},
    {"offload.modules=[\"attn_norm\"]", "recompute.modules=[\"layer\"]"},
};

void expect_same_bits(const Words& sets, const model::Mesh& mesh, const RunOptions& options = {}) {
  SCOPED_TRACE(text_of(mesh));
  const config::Config plain = small_model(joined_sets(kWide, sets));
  const std::vector<model::Role> roles = even_roles(plain, mesh);
  const LayoutRun first = run_layout(plain, mesh, roles, {});
  for (const Words& offload : kOffloads) {
    Words all = joined_sets(joined_sets(kWide, sets), offload);
    all.push_back("offload.min_bytes=0");
    const config::Config c = small_model(all);
    EXPECT_TRUE(compare(first, run_layout(c, mesh, roles, options), model::make_parameters(c)).bitwise)
        << offload[0];
  }
}

model::Mesh pipeline(Axes axes, int vpp) {
  model::Mesh m = mesh_of(axes);
  m.vpp = vpp;
  return m;
}

TEST(Offload, Replicas) { expect_same_bits({}, mesh_of({1, 1, 2})); }
TEST(Offload, TensorAndExperts) { expect_same_bits({}, mesh_of({2, 1, 2, 1, 4, 1})); }
TEST(Offload, Pipeline) {
  expect_same_bits({"train.num_microbatches=4"}, mesh_of({1, 1, 1, 2}));
  expect_same_bits({"train.num_microbatches=4"}, mesh_of({2, 1, 2, 2, 2, 1}));
}
TEST(Offload, InterleavedPipeline) {
  expect_same_bits({"train.num_microbatches=4"}, pipeline({1, 1, 1, 2}, 2));
  expect_same_bits({"train.num_microbatches=4"}, pipeline({1, 1, 2, 2, 2, 1}, 2));
}
TEST(Offload, Ring) {
  model::Mesh m = mesh_of({1, 2});
  m.context = model::ContextKind::Ring;
  expect_same_bits({}, m);
}
TEST(Offload, DeadMemoryIsDeadOnEveryRank) {
  RunOptions options;
  options.poison = true, options.delay_seed = 5;
  expect_same_bits({"train.num_microbatches=4"}, pipeline({1, 1, 2, 2, 2, 1}, 2), options);
}
TEST(Offload, OneThreadForAllCallsOfARank) {
  RunOptions options;
  options.one_chain = true;
  expect_same_bits({"train.num_microbatches=4"}, pipeline({1, 1, 1, 2}, 2), options);
}

// So these runs are none without copies: where nothing could be moved, they are refused.
TEST(Offload, LayoutsGoThroughThePass) {
  const config::Config c = small_model(joined_sets(kWide, {"offload.modules=[\"layer\"]"}));
  EXPECT_THROW(run_layout(c, mesh_of({1, 1, 2}), {}, {}), base::Error)
      << "all is smaller than offload.min_bytes";
}

// What verify-layout runs is small; what was asked to go goes all the same.
TEST(Offload, TheSmallCopyOfALayoutOffloadsToo) {
  const config::Config asked =
      small_model({"offload.modules=[\"layer\"]", "offload.layers=\"0\"", "offload.fraction=0.5"});
  const Shrunk small = shrink(asked, mesh_of({1, 1, 2}), SmallCopy::Float64);
  EXPECT_EQ(small.config.offload.modules, asked.offload.modules);
  EXPECT_EQ(small.config.offload.min_bytes, 0);
  EXPECT_EQ(small.config.offload.keep_last, 0);
  RunOptions options;
  options.num_steps = 1;
  run_layout(small.config, mesh_of({1, 1, 2}), small.roles, options);
}

}  // namespace
}  // namespace pleat::verify
