// Values out of range, keys without effect, and combinations that cannot be, each with its message.
#include "config_support.h"

namespace pleat::config {
namespace {

struct Case {
  std::string text;
  std::string message;
};

void expect_refused(const std::string& base, const std::vector<Case>& cases) {
  ASSERT_EQ(refusal(base), "");
  for (const Case& c : cases) EXPECT_TRUE(holds(refusal(base + c.text), c.message)) << c.text;
}

TEST(ConfigRange, ValuesOutOfRange) {
  expect_refused(
      kDense,
      {
          {"model.num_layers = 0",
           "model.num_layers = 0 is out of range: needed is 1 to 4096; the nearest bound is 1"},
          {"model.hidden_size = -4", "model.hidden_size = -4 is out of range"},
          {"optimizer.beta2 = 1", "optimizer.beta2 = 1 is out of range: needed is 0 to below 1"},
          {"optimizer.lr = 0", "needed is above 0 to 1000"},
          {"optimizer.lr = nan", "optimizer.lr = nan is out of range"},
          {"optimizer.clip = inf", "optimizer.clip = inf is out of range"},
          {"optimizer.groups.norm.lr_mult = -1", "optimizer.groups.norm.lr_mult = -1 is out of range"},
          {"optimizer.groups.mlp.weight_decay = -1",
           "optimizer.groups.mlp.weight_decay = -1 is out of range"},
          {"train.steps = 9223372036854775807", "train.steps = 9.223372036854776e+18 is out of range"},
          {"checkpoint.keep = 1", "checkpoint.keep = 1 is out of range: needed is 2 to"},
          {"optimizer.schedule = \"cosin\"",
           "needed is one of \"cosine\", \"linear\", \"wsd\", \"constant\"; the nearest is \"cosine\""},
          {"recompute.modules = [\"norms\"]", "recompute.modules = \"norms\" is not known"},
          {"device.kind = \"tpu\"", "device.kind = \"tpu\" is not known: needed is one of \"cpu\", \"cuda\""},
      });
}

TEST(ConfigMtp, NeedsRoomAheadAndIsNamed) {
  expect_refused(
      kDense,
      {
          {"model.num_mtp_layers = 17", "model.num_mtp_layers = 17 is out of range"},
          {"model.num_mtp_layers = 2\ntrain.seq_len = 2",
           "model.num_mtp_layers = 2 looks 2 tokens ahead and needs train.seq_len of at least 3, got 2"},
          {"train.mtp_loss_factor = 0.3", "it applies when model.num_mtp_layers > 0"},
          {"model.num_mtp_layers = 1\ntrain.mtp_loss_factor = 0",
           "train.mtp_loss_factor = 0 is out of range"},
          {"optimizer.freeze = [\"mtp\"]", "matches no parameter of this model: model.num_mtp_layers = 0"},
          {"optimizer.groups.mtp.lr_mult = 2", "model.num_mtp_layers > 0"},
          {"model.num_layers = 4\nmodel.num_mtp_layers = 1\nrecompute.modules = [\"norm\"]\n"
           "recompute.layers = \"3-5\"",
           "does not lie within layers 0-4 (model.num_layers = 4, model.num_mtp_layers = 1)"},
      });
  // A layer of multi-token prediction is what the last one is.
  const Config c = parse(kMoe +
                         "model.num_layers = 3\nmodel.ffn_hidden_size = 8\nmodel.moe_layer_freq = [0, 1, 1]\n"
                         "model.num_mtp_layers = 2");
  EXPECT_TRUE(is_moe_layer(c, 3) && is_moe_layer(c, 4));
  EXPECT_EQ(num_moe_layers(c), 2);
  EXPECT_EQ(num_all_layers(c), 5);
}

TEST(ConfigEffect, KeysWithoutEffectAreRefused) {
  expect_refused(
      kDense,
      {
          {"moe.top_k = 2",
           "moe.top_k = 2 has no effect here: it applies when moe.num_experts > 0 (now moe.num_experts = 0); "
           "change that or remove moe.top_k"},
          {"model.moe_layer_freq = 1", "model.moe_layer_freq = [1] has no effect"},
          {"log.health_every = 1", "log.health_every = 1 has no effect"},
          {"optimizer.schedule = \"constant\"\noptimizer.min_lr = 1e-5",
           "optimizer.min_lr = 1e-05 has no effect here: it applies when optimizer.schedule is not "
           "\"constant\" (now "
           "optimizer.schedule = \"constant\")"},
          {"optimizer.schedule = \"constant\"\noptimizer.decay_steps = 5",
           "optimizer.decay_steps = 5 has no effect"},
          {"optimizer.decay_biases = true", "the model has biases"},
          {"optimizer.moment_dtype = \"bfloat16\"", "model.dtype is \"bfloat16\""},
          {"optimizer.moment_dtype = \"bfloat16\"",
           "optimizer.moment1_dtype and optimizer.moment2_dtype say it"},
          {"model.dtype = \"float64\"\noptimizer.moment1_dtype = \"bfloat16\"",
           "model.dtype is not \"float64\""},
          {"model.dtype = \"bfloat16\"\ndevice.kind = \"cuda\"\noptimizer.moment_dtype = \"bfloat16\"\n"
           "optimizer.moment1_dtype = \"bfloat16\"\noptimizer.moment2_dtype = \"float32\"",
           "optimizer.moment1_dtype or optimizer.moment2_dtype is \"unset\" (now optimizer.moment1_dtype = "
           "\"bfloat16\", optimizer.moment2_dtype = \"float32\")"},
          {"optimizer.weight_decay = 0\noptimizer.decay_norms = true", "some weight_decay > 0"},
          {"optimizer.groups.norm.weight_decay = 0.1", "optimizer.decay_norms = true"},
          {"optimizer.groups.router.lr_mult = 2", "optimizer.groups.router.lr_mult = 2.0 has no effect"},
          {"model.tie_embeddings = true\noptimizer.groups.head.lr_mult = 2",
           "a tied head belongs to the group embedding"},
          {"train.eval_every = 5",
           "data.valid is given or data.valid_split > 0 (now data.valid = \"\", data.valid_split = 0.0)"},
          {"data.valid = \"v\"\ndata.valid_split = 0.1", "data.valid is empty (now data.valid = \"v\")"},
          {"data.train = \"a.txt\"\ndata.jsonl_key = \"t\"", "holds a .jsonl file"},
          {"data.train = \"a.txt\"\nchat.template = \"chatml\"", "holds a .jsonl file"},
          {"data.train = \"a.jsonl\"\nchat.template = \"plain\"\ndata.jsonl_key = \"t\"",
           "chat.template is \"none\""},
          {"chat.template = \"plain\"\nchat.user_prefix = \"U\"", "chat.template is \"custom\""},
          {"data.weights = [1.0]", "data.sources is given"},
          {"recompute.layers = \"0\"", "recompute.modules is not empty"},
      });
  expect_refused(
      kMoe,
      {
          {"moe.drop_policy = \"position\"",
           "moe.capacity_factor > 0 or moe.overflow = \"drop\" (now moe.capacity_factor = 0.0"},
          {"moe.pad_to_capacity = true", "moe.capacity_factor > 0"},
          {"moe.force_bias_std = 1", "moe.force_routing = \"skewed\" (now moe.force_routing = \"none\")"},
          {"moe.force_load = 2", "moe.force_routing = \"loaded\" (now moe.force_routing = \"none\")"},
          {"moe.group_topk = 2", "moe.num_groups > 0"},
          {"moe.shared_gate = true", "moe.shared_ffn_hidden_size > 0"},
          {"moe.bias_update_rate = 0.1",
           "moe.load_balancing holds \"bias\" (now moe.load_balancing = [\"aux\"])"},
          {"moe.global_aux_form = \"exact\"", "moe.load_balancing holds \"global_aux\""},
          {"moe.renormalize = false", "moe.score is sigmoid or sqrtsoftplus, or moe.pre_softmax = true"},
          {"moe.score = \"sigmoid\"\nmoe.top_k = 1\nmoe.renormalize = true", "moe.top_k > 1"},
          {"moe.score = \"sigmoid\"\nmoe.pre_softmax = true", "moe.score = \"softmax\""},
          {"moe.load_balancing = \"none\"\nmoe.aux_coef = 0.1", "moe.aux_coef = [0.1] has no effect"},
          {"moe.load_balancing = \"none\"\nmoe.aux_convention = \"hf\"",
           "moe.aux_convention = \"hf\" has no effect"},
          {"moe.load_balancing = \"sinkhorn\"\nmoe.aux_coef = 0.1", "moe.aux_coef = [0.1] has no effect"},
          {"moe.load_balancing = \"sinkhorn\"\nmoe.score = \"sigmoid\"",
           "moe.score = \"sigmoid\" has no effect"},
          {"moe.token_budget = 2", "parallel.ep > 1"},
          {"parallel.ep = 2\nmoe.overflow = \"drop\"", "moe.token_budget > 0"},
          {"model.ffn_hidden_size = 3", "some layer is dense"},
          {"model.mlp_bias = true", "some layer is dense"},
          {"optimizer.groups.mlp.lr_mult = 2", "some layer is dense"},
          {"optimizer.groups.shared_experts.lr_mult = 2", "moe.shared_ffn_hidden_size > 0"},
          {"model.dtype = \"float64\"\nmoe.router_dtype = \"float32\"",
           "moe.router_dtype = \"float32\" has no effect here: it applies when model.dtype is not "
           "\"float64\" (a "
           "float64 model needs "
           "moe.router_dtype = \"float64\")"},
      });
}

TEST(ConfigEffect, ValuesLeftInTheStructAreRefusedToo) {
  Config c;
  c.model.ffn_hidden_size = 64;
  EXPECT_NO_THROW(validate(c));
  c.moe.top_k = 4;
  EXPECT_THROW(validate(c), base::Error);
  c = Config{};
  c.model.ffn_hidden_size = 64;
  c.optimizer.groups["routers"].lr_mult = 2;
  EXPECT_THROW(validate(c), base::Error);
}

TEST(ConfigEffect, ZeroCoefficientsAskForNothing) {
  EXPECT_EQ(refusal(kMoe + "moe.load_balancing = \"sinkhorn\"\nmoe.aux_coef = 0"), "");
  EXPECT_EQ(refusal(kMoe + "moe.load_balancing = \"none\"\nmoe.aux_coef = []"), "");
}

TEST(ConfigCombination, Model) {
  expect_refused(
      kDense,
      {
          {"model.num_kv_heads = 3",
           "model.num_kv_heads = 3 does not divide model.num_heads = 8; the nearest that does is 2"},
          {"model.hidden_size = 250", "model.hidden_size = 250 is not a multiple of model.num_heads = 8"},
          {"model.rotary_dim = 7",
           "model.rotary_dim = 7 is odd, but elements are rotated in pairs; the nearest even one is 8"},
          {"model.rotary_dim = 34", "model.rotary_dim = 34 is larger than the head width 32; at most 32"},
          {"model.head_dim = 9", "the head width 9 is odd"},
          {"model.head_dim = 1", "model.head_dim = 1 leaves no pair"},
      });
  EXPECT_TRUE(
      holds(refusal(""), "model.ffn_hidden_size is needed: 4 of 4 layers are dense (moe.num_experts = 0)"));
  EXPECT_EQ(refusal(kDense + "model.hidden_size = 250\nmodel.head_dim = 32"), "");
}

TEST(ConfigCombination, LayerPattern) {
  expect_refused(
      kMoe,
      {
          {"model.moe_layer_freq = []", "names no layer"},
          {"model.moe_layer_freq = 0", "model.moe_layer_freq = 0 must be at least 1"},
          {"model.moe_layer_freq = [1, 0]", "has 2 entries but model.num_layers = 4"},
          {"model.moe_layer_freq = [1, 0, 2, 1]", "holds 2 for layer 2"},
          {"model.moe_layer_freq = [1, 0, 1, 1]\nmodel.leading_dense_layers = 1", "makes layer 0 MoE but"},
          {"model.moe_layer_freq = [0, 0, 0, 0]\nmodel.ffn_hidden_size = 8", "no layer is MoE"},
          {"model.leading_dense_layers = 5\nmodel.ffn_hidden_size = 8", "is more than model.num_layers = 4"},
          {"model.moe_layer_freq = 2", "model.ffn_hidden_size is needed: 2 of 4 layers are dense"},
      });
}

TEST(ConfigCombination, Router) {
  EXPECT_TRUE(holds(refusal("moe.num_experts = 8"), "moe.ffn_hidden_size is needed"));
  expect_refused(
      kMoe,
      {
          {"moe.top_k = 9", "moe.top_k = 9 is more than moe.num_experts = 8; at most 8"},
          {"moe.top_k = 1", "set moe.pre_softmax = true"},
          {"moe.num_groups = 1\nmoe.group_topk = 1", "moe.num_groups = 1 limits nothing"},
          {"moe.num_groups = 3\nmoe.group_topk = 1",
           "moe.num_groups = 3 does not divide moe.num_experts = 8"},
          {"moe.num_groups = 4", "moe.group_topk = 0 with moe.num_groups = 4; needed is 1 to 4"},
          {"moe.num_groups = 4\nmoe.group_topk = 5", "needed is 1 to 4"},
          {"moe.num_groups = 4\nmoe.group_topk = 3", "moe.group_topk = 3 is more than moe.top_k = 2"},
          {"moe.num_groups = 4\nmoe.group_topk = 1\nmoe.top_k = 3", "raise moe.group_topk to 2"},
          {"moe.num_groups = 8\nmoe.group_topk = 2\nmoe.group_score_topk = 2",
           "moe.group_score_topk = 2 is more than the 1 experts of a group (moe.num_experts = 8, "
           "moe.num_groups = 8); at most 1 is possible"},
          {"moe.force_routing = \"skewed\"", "moe.force_bias_std = 0 is not skewed"},
          {"moe.force_routing = \"loaded\"\nmoe.force_load = 4.5", "at most moe.num_experts / moe.top_k = 4"},
          {"moe.force_routing = \"loaded\"\nmoe.num_groups = 4\nmoe.group_topk = 2",
           "does not go with moe.group_topk = 2"},
          {"moe.force_routing = \"loaded\"\nmoe.load_balancing = \"sinkhorn\"", "\"sinkhorn\", which"},
          {"moe.force_routing = \"loaded\"\nmoe.score = \"sigmoid\"\nmoe.load_balancing = \"bias\"",
           "\"bias\", which"},
      });
  EXPECT_EQ(refusal(kMoe + "moe.top_k = 1\nmoe.pre_softmax = true"), "");
  EXPECT_EQ(refusal(kMoe + "moe.top_k = 1\nmoe.load_balancing = \"sinkhorn\""), "");
  EXPECT_EQ(refusal(kMoe + "moe.top_k = 1\nmoe.score = \"sigmoid\""), "");
  EXPECT_EQ(refusal(kMoe + "moe.force_routing = \"skewed\"\nmoe.force_bias_std = -0.5"), "");
  EXPECT_EQ(refusal(kMoe + "moe.force_routing = \"loaded\"\nmoe.force_load = 4"), "");
}

TEST(ConfigCombination, Balancing) {
  expect_refused(kMoe, {
                           {"moe.load_balancing = []", "write [\"none\"]"},
                           {"moe.load_balancing = [\"aux\", \"aux\"]", "names \"aux\" twice"},
                           {"moe.load_balancing = [\"none\", \"aux\"]", "\"none\" stands alone"},
                           {"moe.load_balancing = [\"sinkhorn\", \"aux\"]", "\"sinkhorn\" stands alone"},
                           {"moe.load_balancing = [\"aux\", \"seq_aux\"]", "holds 1 numbers, but"},
                           {"moe.aux_coef = [1, 2]", "moe.aux_coef = [1.0, 2.0] holds 2 numbers"},
                           {"moe.load_balancing = \"bias\"", "set moe.score = \"sigmoid\""},
                           {"moe.aux_convention = \"hf\"\nmoe.load_balancing = \"seq_aux\"",
                            "is defined for \"aux\" only"},
                           {"moe.load_balancing = \"global_aux\"\nmoe.global_aux_form = \"exact\"",
                            "set train.order = \"gpipe\" (now \"1f1b\")"},
                           {"moe.load_balancing = \"global_aux\"\ntrain.order = \"gpipe\"",
                            "set moe.global_aux_form = \"exact\""},
                       });
  EXPECT_EQ(
      refusal(kMoe +
              "moe.load_balancing = [\"bias\", \"seq_aux\"]\nmoe.aux_coef = 1e-4\nmoe.score = \"sigmoid\""),
      "");
  EXPECT_EQ(
      refusal(
          kMoe +
          "moe.load_balancing = \"global_aux\"\nmoe.global_aux_form = \"exact\"\ntrain.order = \"gpipe\""),
      "");
}

TEST(ConfigCombination, Run) {
  expect_refused(
      kDense,
      {
          {"optimizer.min_lr = 1", "optimizer.min_lr = 1 is larger than optimizer.lr = 0.0003"},
          {"optimizer.warmup_steps = 100", "leaves nothing to decay before step 100"},
          {"optimizer.schedule = \"wsd\"\noptimizer.warmup_steps = 95", "a final decay of 10 steps"},
          {"train.micro_batch = 65536\ntrain.seq_len = 65536",
           "is more than 1073741823 tokens; use more train.num_microbatches"},
          {"train.micro_batch = 8192\ntrain.seq_len = 65536\nmoe.num_experts = 8\nmoe.ffn_hidden_size = 8\n"
           "model.moe_layer_freq = 2\nmoe.top_k = 4",
           "is more than 2147483647; use more train.num_microbatches"},
          {"train.loss_chunk = 129", "is more than the 128 tokens of a microbatch"},
          {"log.timeline_step = 101", "comes after the last step, train.steps = 100"},
          {"model.vocab_size = 200\ndata.train = \"a.txt\"", "model.vocab_size = 200 is too small"},
          {"log.run_dir = \"\"", "log.run_dir is empty"},
          {"data.jsonl_key = \"\"", "data.jsonl_key is empty"},
          {"data.tokenizer = \"\"", "data.tokenizer is empty"},
          {"data.sources = [\"a\"]\ndata.weights = [1]\ndata.train = \"b\"", "are both given"},
          {"data.sources = [\"a\", \"b\"]\ndata.weights = [1]", "names 2 datasets and data.weights holds 1"},
          {"data.sources = [\"a\", \"\"]\ndata.weights = [1, 1]", "holds an empty path"},
          {"data.sources = [\"a\"]\ndata.weights = [0]", "data.weights"},
          {"data.sources = [\"a.txt\"]\ndata.weights = [1]\ndata.valid_split = 0.1",
           "there is data.sources; set data.valid"},
          {"chat.template = \"custom\"\nchat.user_prefix = \"U\"", "nothing would be learned"},
      });
  EXPECT_EQ(refusal(kDense + "model.vocab_size = 200\ndata.train = \"a\""), "");
}

TEST(ConfigCombination, Recompute) {
  const std::string norm = "recompute.modules = \"norm\"\n";
  expect_refused(kDense + norm, {
                                    {"recompute.layers = \"\"", "'' is not a layer"},
                                    {"recompute.layers = \"a\"", "'a' is not a layer; write \"all\""},
                                    {"recompute.layers = \"1,\"", "'' is not a layer"},
                                    {"recompute.layers = \"-1\"", "'' is not a layer"},
                                    {"recompute.layers = \"1--2\"", "'-2' is not a layer"},
                                    {"recompute.layers = \"99999999999999999999\"", "is not a layer"},
                                    {"recompute.layers = \"2-1\"", "2-1 does not lie within layers 0-3"},
                                    {"recompute.layers = \"0-4\"",
                                     "0-4 does not lie within layers 0-3 (model.num_layers = 4)"},
                                    {"recompute.layers = \"0-2,1\"", "names layer 1 twice"},
                                });
  EXPECT_TRUE(holds(refusal(kDense + "recompute.modules = \"experts\""), "none of the layers all is MoE"));
  EXPECT_TRUE(holds(refusal(kDense + "recompute.modules = [\"norm\", \"norm\"]"), "names \"norm\" twice"));
  EXPECT_TRUE(holds(refusal(kMoe + "recompute.modules = \"shared_experts\""), "there is none; remove it"));
  const std::string mixed =
      kMoe + "model.ffn_hidden_size = 8\nmodel.leading_dense_layers = 1\nrecompute.modules = \"experts\"\n";
  EXPECT_TRUE(holds(refusal(mixed + "recompute.layers = \"0\""), "none of the layers 0 is MoE"));
  EXPECT_EQ(refusal(mixed + "recompute.layers = \"0-1,3\""), "");
}

TEST(ConfigCombination, Offload) {
  const std::string norm = "offload.modules = \"attn_norm\"\n";
  expect_refused(kDense + norm, {
                                    {"offload.layers = \"a\"", "offload.layers = \"a\": 'a' is not a layer"},
                                    {"offload.layers = \"0-4\"", "0-4 does not lie within layers 0-3"},
                                    {"offload.layers = \"0-2,1\"", "names layer 1 twice"},
                                    {"offload.fraction = 0", "offload.fraction = 0 is out of range"},
                                    {"offload.fraction = 1.5", "offload.fraction = 1.5 is out of range"},
                                    {"offload.keep_last = -1", "offload.keep_last = -1 is out of range"},
                                    {"offload.ahead = 0", "offload.ahead = 0 is out of range"},
                                    {"offload.min_bytes = -1", "offload.min_bytes = -1 is out of range"},
                                });
  for (const char* key : {"layers = \"0\"", "fraction = 0.5", "keep_last = 2", "ahead = 1", "min_bytes = 0"})
    EXPECT_TRUE(holds(refusal(kDense + "offload." + key), "offload.modules is not empty")) << key;
  EXPECT_TRUE(holds(refusal(kDense + "offload.modules = \"norm\""), "offload.modules"));
  EXPECT_TRUE(holds(refusal(kDense + "offload.modules = \"expert_up\""), "none of the layers all is MoE"));
  EXPECT_TRUE(holds(refusal(kDense + "offload.modules = [\"qkv\", \"qkv\"]"), "names \"qkv\" twice"));
  EXPECT_TRUE(holds(refusal(kDense + "offload.modules = [\"qkv\", \"layer\"]"), "\"layer\" alone"));
  // A module of a layer is kept, recomputed or offloaded.
  for (const char* module : {"activation", "core_attention", "layer"}) {
    const std::string both = kMoe + fmt::format("offload.modules = \"{0}\"\nrecompute.modules = \"{0}\"\n", module);
    EXPECT_TRUE(holds(refusal(both), fmt::format("layer 0 would have \"{}\" both recomputed and offloaded", module)));
    EXPECT_TRUE(holds(refusal(both + "recompute.layers = \"0-2\"\noffload.layers = \"2-3\""), "layer 2 would have"));
    EXPECT_EQ(refusal(both + "recompute.layers = \"0-1\"\noffload.layers = \"2-3\""), "");
  }
  EXPECT_EQ(refusal(kMoe + "offload.modules = \"attn_norm\"\nrecompute.modules = \"layer\""), "");
}

TEST(ConfigCombination, Parallel) {
  expect_refused(kDense, {
                             {"parallel.vpp = 2", "parallel.vpp = 2 has no effect with parallel.pp = 1"},
                             {"parallel.ep = 2", "parallel.ep = 2 needs experts"},
                             {"parallel.etp = 2", "parallel.etp = 2 needs experts"},
                             {"parallel.tp = 0", "parallel.tp = 0 is out of range"},
                         });
  // kMoe has 8 experts.
  expect_refused(kMoe,
                 {
                     {"parallel.ep = 3",
                      "parallel.ep = 3 does not divide moe.num_experts = 8; the nearest that do are 2 and 4"},
                     {"parallel.ep = 16", "the nearest that do are 8"},
                 });
  EXPECT_EQ(refusal(kDense + "parallel.tp = 2\nparallel.cp = 2\nparallel.pp = 2\nparallel.vpp = 2"), "");
  EXPECT_EQ(refusal(kDense + "parallel.vpp = 1\nparallel.ep = 1\nparallel.etp = 1"), "");
  EXPECT_EQ(refusal(kMoe + "parallel.ep = 4\nparallel.etp = 2"), "");
}

}  // namespace
}  // namespace pleat::config
