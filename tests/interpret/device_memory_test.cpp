// What a step takes on a GPU outside its arena.
#include "interpret/run/device_memory.h"

#include <gtest/gtest.h>

#include "device/cuda/cuda.h"
#include "kernels/cuda/workspace.h"
#include "program/builder.h"

namespace pleat::interpret {
namespace {

using program::none;
using program::r;
using program::w;

TEST(DeviceMemory, EveryLanePaysForItsMostDemandingStage) {
  program::Builder b("step");
  const auto value = [&](const char* name, std::vector<int64_t> shape) {
    return b.value(name, tensor::Dtype::BF16, std::move(shape), program::Owner::Activations,
                   program::Life::Persistent);
  };
  const auto x = value("x", {8, 16}), weight = value("w", {16, 16});
  const int side = b.lane("side", "compute");
  for (int i = 0; i < 2; ++i) {
    b.at({0, i});
    b.forward(
        program::Op::qkv,
        {r(x), r(weight), none(), none(),
         w(b.value("y" + std::to_string(i), tensor::Dtype::BF16, {8, 16}, program::Owner::Activations))});
  }
  Plan made = plan(b.program());
  made.arena_bytes = 1000;
  DeviceMemory one = device_memory(b.program(), made);
  EXPECT_EQ(one.workspace_bytes, kernels::kMatmulWorkspace);
  EXPECT_EQ(one.total(), 1000 + one.workspace_bytes + one.context_bytes);
  EXPECT_GT(one.context_bytes, 0);
  EXPECT_EQ(one.context_measured, device::cuda::num_devices() > 0);
  EXPECT_NE(describe(one).find(one.context_measured ? "measured" : "no GPU here"), std::string::npos);
  b.at({0, 2}, side);
  b.forward(program::Op::shared_up,
            {r(x), r(weight), none(), none(),
             w(b.value("z", tensor::Dtype::BF16, {8, 16}, program::Owner::Activations))});
  EXPECT_EQ(device_memory(b.program(), made).workspace_bytes, 2 * kernels::kMatmulWorkspace);
}

int64_t attention_workspace(int64_t rows, int64_t heads, int64_t kv_heads, int64_t d, int64_t dv,
                            bool documents, bool deterministic = false, int64_t seq_len = 4096) {
  program::Builder b("attention");
  using tensor::Dtype;
  const auto at = [&](const char* name, Dtype dtype, std::vector<int64_t> shape) {
    return b.value(name, dtype, std::move(shape), program::Owner::Activations, program::Life::Persistent);
  };
  const int64_t width = (heads + kv_heads) * d + kv_heads * dv;
  const auto dqkv = b.value("dqkv", Dtype::BF16, {rows, width}, program::Owner::Activations);
  b.at({0, 0});
  b.dgrad(program::Op::attention,
          {r(at("dout", Dtype::BF16, {rows, heads * dv})), r(at("qkv", Dtype::BF16, {rows, width})),
           r(at("out", Dtype::BF16, {rows, heads * dv})), r(at("lse", Dtype::F32, {rows, heads})),
           r(at("doc_start", Dtype::I32, {rows})), w(dqkv)},
          {{"heads", double(heads)},
           {"kv_heads", double(kv_heads)},
           {"head_dim", double(d)},
           {"v_head_dim", double(dv)},
           {"seq_len", double(seq_len)},
           {"deterministic", deterministic ? 1.0 : 0.0},
           {"documents", documents ? 1.0 : 0.0}});
  return device_memory(b.program(), plan(b.program())).workspace_bytes;
}

// What cuDNN 9 said on a GPU, in MiB, and the log-sum-exp beside it.
TEST(DeviceMemory, WorkspaceOfAttentionIsWhatTheLibraryAsksFor) {
  constexpr int64_t kMiB = 1 << 20;
  EXPECT_EQ(attention_workspace(8192, 128, 128, 192, 128, false), (772 + 4) * kMiB);
  EXPECT_EQ(attention_workspace(16384, 32, 4, 128, 128, false), (514 + 2) * kMiB);
  EXPECT_EQ(attention_workspace(8192, 32, 8, 128, 128, false), (257 + 1) * kMiB);
  EXPECT_EQ(attention_workspace(8192, 32, 8, 128, 128, true), 257 * kMiB);
  EXPECT_EQ(attention_workspace(8192, 32, 8, 128, 128, true, true), 2 * kMiB);  // own kernels
  // The scores of two sequences are 2 GiB; of two with twice the heads only half are kept at a time.
  EXPECT_EQ(attention_workspace(8192, 32, 32, 128, 128, false, true), (2048 + 2) * kMiB);
  EXPECT_EQ(attention_workspace(8192, 64, 64, 128, 128, false, true), (2048 + 4) * kMiB);
  // Of 8 query heads on one key head over 32,768 rows they would be 16 GiB: own kernels.
  EXPECT_EQ(attention_workspace(32768, 64, 8, 128, 128, false, true, 32768), 16 * kMiB);
}

// What the router keeps between two launches: sums of a weight gradient, and counts of documents with a loss
// per document.
TEST(DeviceMemory, WorkspaceOfTheRouter) {
  using tensor::Dtype;
  constexpr int64_t kTokens = 300, kExperts = 20, kWidth = 64;
  const auto workspace = [](bool weight, double seq_coef) {
    program::Builder b("router");
    const auto at = [&](const char* name, Dtype dtype, std::vector<int64_t> shape) {
      return b.value(name, dtype, std::move(shape), program::Owner::Activations, program::Life::Persistent);
    };
    const auto logits = at("logits", Dtype::F32, {kTokens, kExperts}),
               x = at("x", Dtype::BF16, {kTokens, kWidth}),
               weights = at("w", Dtype::BF16, {kExperts, kWidth});
    b.at({0, 0});
    if (seq_coef >= 0)
      b.dgrad(program::Op::router_aux,
              {r(logits), r(at("valid", Dtype::U8, {kTokens})), r(at("doc_start", Dtype::I32, {kTokens})),
               r(at("norm", Dtype::F64, {4})), none(), none(),
               w(at("dlogits", Dtype::F32, {kTokens, kExperts})), w(at("losses", Dtype::F64, {4}))},
              {{"seq_coef", seq_coef}});
    else if (weight)
      b.wgrad(program::Op::router_gate, {r(logits), r(x), w(weights), none()});
    else
      b.dgrad(program::Op::router_gate, {r(logits), r(weights), w(x)});
    return device_memory(b.program(), plan(b.program())).workspace_bytes;
  };
  EXPECT_EQ(workspace(true, -1), 4 * kExperts * kWidth);
  EXPECT_EQ(workspace(false, -1), 0);
  EXPECT_EQ(workspace(false, 0.01), 4 * (kTokens + kTokens * kExperts));
  EXPECT_EQ(workspace(false, 0), 0);
}

}  // namespace
}  // namespace pleat::interpret
