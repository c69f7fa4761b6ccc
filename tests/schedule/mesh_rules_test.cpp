// What kernels do not take on a layout is refused before anything is built, for the device the configuration
// names.
#include "model/mesh_rules.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "layout/layout.h"
#include "program/limits.h"
#include "schedule/schedule_support.h"
#include "support/refusal.h"

namespace pleat::schedule {
namespace {

std::string refused(const Words& sets, int64_t num_ranks) {
  return testing::message_of([&] { build_ranks(make_config(sets), num_ranks); });
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Groups, HaveOneNameInLayoutsAndPrograms) {
  std::set<std::string_view> of_layouts;
  for (int k = 0; k < layout::kNumGroupKinds; ++k)
    of_layouts.insert(name_of(static_cast<layout::GroupKind>(k)));
  for (int g = 1; g < program::kNumGroups; ++g) {
    std::string_view name = name_of(static_cast<program::Group>(g));
    for (const std::string_view part : {"-inside", "-across"})
      if (name.ends_with(part)) name.remove_suffix(part.size());
    EXPECT_TRUE(of_layouts.contains(name)) << name;
  }
}

TEST(MeshRules, MoreChoicesThanAGpusLanesAreRefusedOverRanks) {
  const Words on_cpu = {"moe.num_experts=64", "moe.top_k=33", "parallel.ep=2"};
  EXPECT_EQ(refused(on_cpu, 2), "");
  Words on_gpu = on_cpu;
  on_gpu.push_back("device.kind=cuda");
  EXPECT_TRUE(says(refused(on_gpu, 2),
                   "moe.top_k = 33 with experts on several ranks is more than a GPU takes: at most 32"));
  on_gpu[1] = "moe.top_k=32";
  EXPECT_EQ(refused(on_gpu, 2), "");
  EXPECT_EQ(refused({"moe.num_experts=64", "moe.top_k=33", "device.kind=cuda"}, 1), "");
}

TEST(MeshRules, MoreExpertsThanAGpusBlockHoldsAreRefusedInBfloat16) {
  const auto experts = [](const char* dtype, const char* num, const char* ep) {
    return Words{"device.kind=cuda", fmt::format("model.dtype={}", dtype),
                 fmt::format("moe.num_experts={}", num), fmt::format("parallel.ep={}", ep)};
  };
  EXPECT_TRUE(says(refused(experts("bfloat16", "416", "1"), 1), "416 experts on a rank"));
  EXPECT_EQ(refused(experts("bfloat16", "415", "1"), 1), "");
  EXPECT_EQ(refused(experts("bfloat16", "416", "2"), 2), "");
  EXPECT_EQ(refused(experts("float32", "416", "1"), 1), "");
}

TEST(MeshRules, RowsBeyondThirtyTwoBitsAreRefused) {
  // 2^27 tokens of each of 32 ranks may all choose the experts of one.
  const Words sets = {"parallel.ep=32",         "moe.num_experts=64",        "train.micro_batch=8",
                      "train.seq_len=16777216", "train.num_microbatches=32", "moe.top_k=1",
                      "moe.pre_softmax=true"};
  const std::string text = refused(sets, 32);
  EXPECT_TRUE(says(text, "may get 4294967296 rows of 32 ranks, at most 2147483647 are possible")) << text;
}

TEST(MeshRules, MoreNumbersThanAGpusThreadsAreRefused) {
  const Words sets = {"device.kind=cuda",      "model.dtype=bfloat16",         "train.seq_len=1048576",
                      "train.micro_batch=1",   "model.leading_dense_layers=1", "model.ffn_hidden_size=8193",
                      "moe.ffn_hidden_size=8", "moe.shared_ffn_hidden_size=8", "train.num_microbatches=1"};
  EXPECT_TRUE(
      says(refused(sets, 1), "1048576 rows of model.ffn_hidden_size = 8193 are too many for a GPU's kernel"));
  Words even = sets;
  even[5] = "model.ffn_hidden_size=8192";  // eight at a time
  EXPECT_EQ(refused(even, 1), "");
}

TEST(MeshRules, AKeyWithoutEffectOnOneRankIsRefusedWhereRanksAreKnown) {
  EXPECT_TRUE(says(refused({"comm.check=true"}, 1), "comm.check = true has no effect here"));
  EXPECT_EQ(refused({"comm.check=true"}, 2), "");
}

}  // namespace
}  // namespace pleat::schedule
