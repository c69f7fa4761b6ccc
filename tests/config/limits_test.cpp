// Sizes and types no kernel takes are refused with the configuration, for the device it names, whatever this
// program was built for.
#include "program/limits.h"

#include "config_support.h"

namespace pleat::config {
namespace {

TEST(ConfigLimits, AHeadOf512IsRefusedBeforeAKernelSeesIt) {
  EXPECT_TRUE(holds(refusal(kDense + "model.head_dim = 512\n"),
                    "model.head_dim = 512 is out of range: needed is 0 to 256"));
  EXPECT_TRUE(
      holds(refusal(kDense + "model.hidden_size = 1024\nmodel.num_heads = 2\n"),
            "model.head_dim = model.hidden_size / model.num_heads = 512 is more than attention takes; "
            "at most 256 is possible"));
  EXPECT_EQ(refusal(kDense + "model.hidden_size = 1024\nmodel.num_heads = 4\n"), "");
  const std::string latent = kDense +
                             "model.attention = \"mla\"\nmodel.kv_lora_rank = 64\nmodel.v_head_dim = 64\n"
                             "model.qk_nope_head_dim = 200\n";
  EXPECT_TRUE(holds(refusal(latent + "model.qk_rope_head_dim = 64\n"),
                    "model.qk_nope_head_dim + model.qk_rope_head_dim = 264 is more than attention takes"));
  EXPECT_EQ(refusal(latent + "model.qk_rope_head_dim = 56\n"), "");
  EXPECT_TRUE(holds(refusal(latent, {"model.qk_rope_head_dim=2", "model.v_head_dim=257"}), "0 to 256"));
}

TEST(ConfigLimits, EightThousandExpertsAreRefusedBeforeAKernelSeesThem) {
  EXPECT_TRUE(
      holds(refusal(kMoe, {"moe.num_experts=8192"}),
            "moe.num_experts = 8192 is out of range: needed is 0 to 4096; the nearest bound is 4096"));
  EXPECT_EQ(refusal(kMoe, {"moe.num_experts=4096"}), "");
}

TEST(ConfigLimits, TypesADeviceDoesNotRunAreRefusedByName) {
  EXPECT_EQ(
      refusal(kMoe, {"device.kind=cuda", "model.dtype=float64"}),
      "model.dtype = \"float64\" needs device.kind = \"cpu\" (now \"cuda\"): a GPU runs \"bfloat16\" and "
      "\"float32\"");
  EXPECT_EQ(
      refusal(kMoe, {"device.kind=cuda", "moe.router_dtype=float64"}),
      "moe.router_dtype = \"float64\" needs device.kind = \"cpu\" (now \"cuda\"): a GPU's router runs in "
      "\"float32\"");
  EXPECT_EQ(
      refusal(kMoe, {"model.dtype=bfloat16"}),
      "model.dtype = \"bfloat16\" needs device.kind = \"cuda\" (now \"cpu\"): the CPU runs \"float32\" and "
      "\"float64\"");
  for (const char* type : {"bfloat16", "float32"})
    EXPECT_EQ(refusal(kMoe, {"device.kind=cuda", std::string("model.dtype=") + type}), "");
  EXPECT_EQ(refusal(kMoe, {"moe.router_dtype=float64"}), "");
}

TEST(ConfigLimits, GroupsBeyondALaneEachAreRefusedOnAGpuOnly) {
  const Words groups = {"moe.num_experts=128", "moe.num_groups=64", "moe.group_topk=2", "moe.top_k=2"};
  EXPECT_EQ(refusal(kMoe, groups), "");
  Words gpu = groups;
  gpu.push_back("device.kind=cuda");
  EXPECT_TRUE(holds(refusal(kMoe, gpu), "moe.num_groups = 64 is more than a GPU takes; at most 32"));
  gpu[1] = "moe.num_groups=32";
  EXPECT_EQ(refusal(kMoe, gpu), "");
}

TEST(ConfigLimits, MoreTokensThanRowsCanBeNumberedAreRefused) {
  EXPECT_TRUE(holds(refusal(kDense, {"train.micro_batch=64", "train.seq_len=16777216"}),
                    "is more than 1073741823 tokens"));
}

}  // namespace
}  // namespace pleat::config
