#include "schedule/schedule_support.h"

#include <gtest/gtest.h>

#include "base/checked.h"
#include "interpret/plan/plan.h"
#include "support/small_models.h"

namespace pleat::schedule {

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"shared", {}},
      {"moe", {"moe.shared_ffn_hidden_size=0"}},
      {"dense",
       {"moe.num_experts=", "moe.top_k=", "moe.ffn_hidden_size=", "moe.shared_ffn_hidden_size=",
        "model.ffn_hidden_size=48"}},
      {"leading_dense", {"model.leading_dense_layers=1", "model.ffn_hidden_size=48", "moe.shared_gate=true"}},
      {"pattern", {"model.moe_layer_freq=[0,1,0]", "model.ffn_hidden_size=48"}},
      {"qk_norm", {"model.qk_norm=true"}},
      {"biases",
       {"model.qkv_bias=true", "model.attn_out_bias=true", "model.mlp_bias=true", "model.moe_layer_freq=2",
        "model.ffn_hidden_size=48", "moe.router_bias=true"}},
      {"tied", {"model.tie_embeddings=true"}},
      {"window", {"model.sliding_window=8", "model.rotary_dim=4"}},
      {"jitter", {"moe.input_jitter=0.01"}},
      {"sinkhorn", {"moe.load_balancing=[\"sinkhorn\"]"}},
      {"no_balance", {"moe.load_balancing=[\"none\"]"}},
      {"force_balanced", {"moe.force_routing=\"balanced\""}},
      {"force_loaded", {"moe.force_routing=\"loaded\"", "moe.force_load=1.5"}},
      {"force_skewed", {"moe.force_routing=\"skewed\"", "moe.force_bias_std=1.0", "moe.input_jitter=0.02"}},
      {"hf", {"moe.aux_convention=\"hf\"", "moe.z_coef=0.001"}},
      {"global_running", {"moe.load_balancing=[\"global_aux\"]"}},
      {"global_exact",
       {"moe.load_balancing=[\"global_aux\"]", "moe.global_aux_form=\"exact\"", "train.order=\"gpipe\""}},
      {"all_losses",
       {"moe.load_balancing=[\"aux\",\"seq_aux\",\"global_aux\"]", "moe.aux_coef=[0.01,0.02,0.03]",
        "moe.z_coef=0.001"}},
      {"bias_groups",
       {"moe.score=\"sigmoid\"", "moe.load_balancing=[\"bias\",\"seq_aux\"]", "moe.num_groups=4",
        "moe.group_topk=2", "moe.scaling_factor=2.5"}},
      {"capacity", {"moe.capacity_factor=1.25"}},
      {"position", {"moe.capacity_factor=1.0", "moe.drop_policy=\"position\""}},
      {"pad", {"moe.capacity_factor=1.5", "moe.pad_to_capacity=true"}},
      {"gpipe", {"train.order=\"gpipe\"", "train.num_microbatches=3"}},
      {"microbatches", {"train.num_microbatches=5", "model.num_layers=2"}},
      {"chunks", {"train.loss_chunk=17"}},
      {"mtp",
       {"model.num_mtp_layers=1", "moe.score=\"sigmoid\"", "moe.load_balancing=[\"bias\",\"seq_aux\"]"}},
      {"mtp_two_dense",
       {"model.num_mtp_layers=2", "model.moe_layer_freq=[1,1,0]", "model.ffn_hidden_size=48",
        "model.tie_embeddings=true", "train.loss_chunk=17", "train.order=\"gpipe\""}},
      {"float64", {"model.dtype=\"float64\"", "train.num_microbatches=1"}},
      {"one_layer", {"model.num_layers=1", "train.num_microbatches=1", "moe.shared_ffn_hidden_size=0"}},
  };
  return all;
}

config::Config make_config(const Words& sets) {
  return config::resolve(config::parse(
      testing::kBuiltModel + "model.num_layers = 3\ntrain.num_microbatches = 2\n", sets, "test.toml"));
}

program::Program train_program(const config::Config& config) {
  return build_training_step(config, model::make_parameters(config));
}

std::string joined(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

int64_t padded(int64_t bytes) { return base::round_up(bytes, interpret::kArenaAlignment); }

interpret::Network on_ranks(const RankPrograms& r) {
  return interpret::network_of_ranks(
      r.programs, static_cast<int>(r.layout.world()),
      [&](int rank, program::Group g) { return group_members(r.layout, rank, g); },
      [&](int rank) { return static_cast<int>(r.layout.attention(rank).pp); });
}

program::ValueId value_named(const program::Program& program, const std::string& name) {
  for (size_t i = 0; i < program.values.size(); ++i)
    if (program.values[i].name == name) return static_cast<program::ValueId>(i);
  ADD_FAILURE() << "no value '" << name << "'";
  return program::kNoValue;
}

}  // namespace pleat::schedule
