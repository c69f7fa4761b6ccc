// What GPU kernels ask for beside their arguments: the formulas of contract.h, which need no GPU.
#include <gtest/gtest.h>

#include "kernels/attention/attention_scratch.h"
#include "kernels/contract.h"
#include "kernels/cuda/scratch.h"
#include "kernels/dense_support.h"
#include "kernels/embedding/embedding_scratch.h"

namespace pleat::kernels::testing {
namespace {

using program::Access;
using program::AttrSet;
using program::KernelKind;
using program::Phase;
using tensor::Dtype;

struct Given {
  Dtype dtype;
  std::vector<int64_t> shape;
};
const Given kAbsent{Dtype::U8, {-1}};

int64_t scratch(KernelKind kind, Phase phase, const std::vector<Given>& given, AttrSet attrs = {}) {
  std::vector<Arg> args;
  for (const Given& g : given) {
    Arg arg;
    if (g.shape != kAbsent.shape) arg = {nullptr, g.dtype, g.shape, Access::Read, true};
    args.push_back(arg);
  }
  name_arguments(args, kind, phase);
  return scratch_of(kind, phase, {args, &attrs, nullptr}, {});
}

TEST(Scratch, OfProductsIsWhatTheLibraryMayUse) {
  const Given x{Dtype::BF16, {300, 64}}, w{Dtype::BF16, {32, 64}}, y{Dtype::BF16, {300, 32}};
  EXPECT_EQ(scratch(KernelKind::linear, Phase::Forward, {x, w, kAbsent, kAbsent, y}), kMatmulWorkspace);
  EXPECT_EQ(scratch(KernelKind::linear, Phase::BackwardInput, {y, w, x}), kMatmulWorkspace);
  EXPECT_EQ(scratch(KernelKind::linear, Phase::BackwardWeight, {y, x, w, kAbsent}), kMatmulWorkspace);
  // A wide bias over many rows needs more: a sum of every 128 rows.
  const Given rows{Dtype::BF16, {1 << 20, 4096}}, bias{Dtype::F32, {4096}};
  EXPECT_EQ(scratch(KernelKind::linear, Phase::BackwardWeight, {rows, x, w, bias}), int64_t{4} * 4096 * 8192);
}

TEST(Scratch, OfSumsOverRows) {
  const Given dy{Dtype::F32, {1000, 24}}, dbias{Dtype::F32, {24}};
  // 32 rows a block, up to 128 blocks.
  EXPECT_EQ(scratch(KernelKind::add_rows, Phase::BackwardWeight, {dy, dbias}), 4 * 24 * 32);
  EXPECT_EQ(column_sum_bytes(1 << 20, 10), 4 * 10 * 128);
  EXPECT_EQ(column_sum_bytes(0, 10), 0);
  const Given rstd{Dtype::F32, {1000}};
  EXPECT_EQ(scratch(KernelKind::rmsnorm, Phase::BackwardWeight, {dy, dy, rstd, dbias}), 4 * 24 * 32);
  EXPECT_EQ(scratch(KernelKind::rmsnorm, Phase::BackwardInput, {dy, dy, dbias, rstd, kAbsent, dy}), 0);
  EXPECT_GT(scratch(KernelKind::sigmoid_gate, Phase::BackwardWeight, {dy, dy, dbias, dy, dbias}),
            4 * 24 * 32);
}

// A sum for every team of threads that can be on the device at once, as kernels/cuda/team.cuh makes them.
TEST(Scratch, OfTeamsCoversEveryWayRowsAreHeld) {
  const Gpu gpu;
  for (const Dtype dtype : {Dtype::BF16, Dtype::F32})
    for (const int64_t width : {8, 64, 256, 264, 520, 1024, 2048, 2880, 4096, 7168, 8200, 16384})
      for (const int64_t rows : {1, 5, 4096, 1 << 20}) {
        const int64_t vectors = width / (16 / tensor::size_of(dtype));
        if (vectors > 2048 || vectors == 0) continue;
        const int64_t warps = vectors <= 64    ? 1
                              : vectors <= 128 ? 2
                              : vectors <= 256 ? 4
                              : vectors <= 512 ? 8
                                               : 16;
        const int64_t teams_of_block = warps == 1 ? 4 : warps == 2 ? 2 : 1;
        const int64_t most_blocks = gpu.num_sms * (gpu.threads_per_sm / (32 * warps * teams_of_block));
        const int64_t teams =
            teams_of_block * std::min(most_blocks, (rows + teams_of_block - 1) / teams_of_block);
        EXPECT_GE(team_sum_bytes(rows, width, dtype, gpu), 4 * teams * width) << width << " " << rows;
      }
  EXPECT_LT(team_sum_bytes(1 << 20, 2048, Dtype::BF16, gpu), kMatmulWorkspace);
}

int64_t attention_scratch(Phase phase, int64_t rows, int64_t heads, int64_t kv_heads, int64_t d, int64_t dv,
                          bool documents, bool deterministic = false, int64_t seq_len = 4096,
                          Dtype dtype = Dtype::BF16) {
  const int64_t width = (heads + kv_heads) * d + kv_heads * dv;
  const Given qkv{dtype, {rows, width}}, out{dtype, {rows, heads * dv}}, lse{Dtype::F32, {rows, heads}},
      doc_start{Dtype::I32, {rows}};
  const AttrSet attrs = {{"deterministic", deterministic ? 1.0 : 0.0},
                         {"documents", documents ? 1.0 : 0.0},
                         {"head_dim", double(d)},
                         {"heads", double(heads)},
                         {"kv_heads", double(kv_heads)},
                         {"scale", 1},
                         {"seq_len", double(seq_len)},
                         {"v_head_dim", double(dv)},
                         {"window", 0}};
  if (phase == Phase::Forward)
    return scratch(KernelKind::attention, phase, {qkv, doc_start, kAbsent, out, lse}, attrs);
  return scratch(KernelKind::attention, phase, {out, qkv, out, lse, doc_start, qkv}, attrs);
}

// What cuDNN 9 said on a GPU, in MiB, and the log-sum-exp or the list of documents beside it.
TEST(Scratch, OfAttentionCoversWhatTheLibraryAsksFor) {
  constexpr int64_t kMiB = 1 << 20;
  using attention::kCudnnSmallBytes;
  const auto backward = [](auto... shape) { return attention_scratch(Phase::BackwardInput, shape...); };
  EXPECT_EQ(backward(8192, 128, 128, 192, 128, false), (772 + 4) * kMiB + kCudnnSmallBytes);
  EXPECT_EQ(backward(16384, 32, 4, 128, 128, false), (514 + 2) * kMiB + kCudnnSmallBytes);
  EXPECT_EQ(backward(8192, 32, 8, 128, 128, false), (257 + 1) * kMiB + kCudnnSmallBytes);
  const int64_t list = attention::document_list_bytes(attention::max_documents(8192, 4096));
  const int64_t documents = backward(8192, 32, 4, 128, 128, true) - list, asked = 2852885504;
  EXPECT_GE(documents, asked);
  EXPECT_LE(documents, asked + asked / 100);
  EXPECT_EQ(backward(8192, 32, 8, 128, 128, true, true), 2 * kMiB + 8192 * 4) << "own kernels";
  // The scores of two sequences are 2 GiB; of two with twice the heads only half are kept at a time.
  EXPECT_EQ(backward(8192, 32, 32, 128, 128, false, true), (2048 + 2) * kMiB + kCudnnSmallBytes);
  EXPECT_EQ(backward(8192, 64, 64, 128, 128, false, true), (2048 + 4) * kMiB + kCudnnSmallBytes);
  // Of 8 query heads on one key head over 32,768 rows they would be 16 GiB: own kernels.
  EXPECT_EQ(backward(32768, 64, 8, 128, 128, false, true, 32768), 16 * kMiB + 32768 * 4);
  EXPECT_EQ(backward(4096, 2, 1, 36, 36, false), 4096 * (2 * 8 + 4)) << "a width cuDNN does not take";
  EXPECT_EQ(backward(4096, 2, 1, 64, 64, false, false, 4096, Dtype::F32), 4096 * 2 * 4);
}

TEST(Scratch, OfAttentionsForward) {
  const auto forward = [](auto... shape) { return attention_scratch(Phase::Forward, shape...); };
  EXPECT_EQ(forward(8192, 32, 8, 128, 128, false), attention::kCudnnSmallBytes);
  EXPECT_EQ(
      forward(8192, 32, 8, 128, 128, true),
      attention::kCudnnSmallBytes + attention::document_list_bytes(attention::max_documents(8192, 4096)));
  EXPECT_EQ(forward(8192, 32, 8, 128, 128, true, false, 4096, Dtype::F32), 0);
}

TEST(Scratch, OfTheRouter) {
  constexpr int64_t kTokens = 300, kExperts = 20, kWidth = 64;
  const Given logits{Dtype::F32, {kTokens, kExperts}}, x{Dtype::BF16, {kTokens, kWidth}},
      w{Dtype::BF16, {kExperts, kWidth}};
  // Five runs of 64 tokens at most; the sums of the bias come after them.
  EXPECT_EQ(scratch(KernelKind::router_gate, Phase::BackwardWeight, {logits, x, w, kAbsent}),
            std::max<int64_t>(5 * 4 * kExperts * kWidth, 64 * kExperts * 8));
  EXPECT_EQ(scratch(KernelKind::router_gate, Phase::BackwardInput, {logits, w, x}), 0);
  // However many tokens and however wide, not more than a product.
  const Given many{Dtype::F32, {1 << 20, 512}}, wide{Dtype::BF16, {1 << 20, 8192}},
      big{Dtype::BF16, {512, 8192}};
  EXPECT_EQ(scratch(KernelKind::router_gate, Phase::BackwardWeight, {many, wide, big, kAbsent}),
            kMatmulWorkspace);
  const auto aux = [&](double seq_coef) {
    const Given valid{Dtype::U8, {kTokens}}, doc_start{Dtype::I32, {kTokens}}, four{Dtype::F64, {4}};
    return scratch(KernelKind::router_aux, Phase::BackwardInput,
                   {logits, valid, doc_start, four, kAbsent, kAbsent, logits, four},
                   {{"experts", kExperts},
                    {"global_coef", 0},
                    {"hf", 0},
                    {"micro_coef", 1},
                    {"num_layers", 1},
                    {"score", 0},
                    {"seq_coef", seq_coef},
                    {"top_k", 2},
                    {"z_coef", 0}});
  };
  EXPECT_GT(aux(0), 0);
  EXPECT_EQ(aux(0.01) - aux(0), 4 * (kTokens + kTokens * kExperts)) << "counts of every document";
}

TEST(Scratch, PartsOfTheEmbeddingsDoNotOverlap) {
  for (const int64_t tokens : {1, 1000, 70000}) {
    const EmbeddingScratch s(tokens, 50304, 2048);
    EXPECT_GE(s.sorted_order, s.sorted_keys + 4 * tokens);
    EXPECT_GE(s.pieces, s.sorted_order + 4 * tokens);
    EXPECT_GE(s.keys, s.pieces + (tokens + 31) / 32 * 2 * 2048 * 4);
    EXPECT_GE(s.order, s.keys + 4 * tokens);
    EXPECT_GE(s.used, s.order + 4 * tokens);
    EXPECT_GE(s.library, s.used + 50304);
    EXPECT_GE(s.total, s.library + EmbeddingScratch::most_of_library(tokens));
    for (const int64_t at : {s.sorted_order, s.pieces, s.keys, s.order, s.used, s.library})
      EXPECT_EQ(at % kScratchAlignment, 0);
  }
}

TEST(Scratch, LessIsRefused) {
  const std::vector<int64_t> shape = {1000, 24}, width = {24};
  std::vector<Arg> args = {{nullptr, Dtype::F32, shape, Access::Read, true},
                           {nullptr, Dtype::F32, width, Access::Write, true}};
  name_arguments(args, KernelKind::add_rows, Phase::BackwardWeight);
  const AttrSet attrs;
  Invocation call{args, &attrs, nullptr};
  expect_refused([&] { check_scratch(KernelKind::add_rows, Phase::BackwardWeight, call); },
                 "[add_rows wgrad] got 0 bytes of scratch, needed 3072");
  std::vector<std::byte> memory(3072);
  call.scratch = memory;
  EXPECT_NO_THROW(check_scratch(KernelKind::add_rows, Phase::BackwardWeight, call));
  EXPECT_EQ(call.scratch_for(3072), memory.data());
  expect_refused([&] { call.scratch_for(3073); }, "3073 bytes of scratch are needed, 3072 were given");
}

}  // namespace
}  // namespace pleat::kernels::testing
