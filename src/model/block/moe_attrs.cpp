#include "model/block/moe_attrs.h"

#include <algorithm>

#include "model/block/forced_load.h"
#include "model/decoder.h"

namespace pleat::model {
namespace {

double score_code(const config::MoeConfig& e) {
  return e.score == "softmax" ? 0 : e.score == "sigmoid" ? 1 : 2;
}

// Those of multi-token prediction included: they run in every training step.
int64_t num_routers(const config::Config& c) {
  return config::num_moe_layers(c) +
         (config::is_moe_layer(c, c.model.num_layers - 1) ? c.model.num_mtp_layers : 0);
}

}  // namespace

program::AttrSet jitter_attrs(const config::Config& c, int layer) {
  return {{"eps", c.moe.input_jitter}, {"layer", double(layer)}};
}

program::AttrSet force_attrs(const config::Config& c, int layer) {
  return {{"layer", double(layer)},
          {"bias_std", c.moe.force_routing == "skewed" ? c.moe.force_bias_std : 0.0},
          {"loaded_bias", c.moe.force_routing == "loaded"
                              ? bias_of_load(c.moe.num_experts, c.moe.top_k, c.moe.force_load)
                              : 0.0}};
}

program::AttrSet choose_attrs(const config::Config& c, bool training) {
  const auto& e = c.moe;
  // Sinkhorn weights by plain scores of the chosen experts.
  const bool sinkhorn = balances_by(c, "sinkhorn");
  return {{"experts", double(e.num_experts)},
          {"top_k", double(e.top_k)},
          {"score", score_code(e)},
          {"pre_softmax", double(e.pre_softmax && !sinkhorn)},
          {"renormalize", double(e.renormalize && !sinkhorn)},
          {"scale", e.scaling_factor},
          {"groups", double(e.num_groups)},
          {"group_topk", double(e.group_topk)},
          {"group_score_topk",
           e.group_topk > 0 ? double(e.group_score_topk > 0 ? e.group_score_topk
                                                            : std::max<int64_t>(1, e.top_k / e.group_topk))
                            : 0.0},
          {"renormalize_single", double(e.renormalize_single)},
          {"sinkhorn", double(sinkhorn)},
          {"training", double(training)}};
}

program::AttrSet count_attrs(const config::Config& c) {
  return {
      {"experts", double(c.moe.num_experts)}, {"top_k", double(c.moe.top_k)}, {"score", score_code(c.moe)}};
}

program::AttrSet aux_attrs(const config::Config& c) {
  const AuxCoefficients a = aux_coefficients(c);
  program::AttrSet out = count_attrs(c);
  out.insert(out.end(), {{"micro_coef", a.micro},
                         {"seq_coef", a.sequence},
                         {"global_coef", a.global},
                         {"z_coef", a.z},
                         {"hf", double(a.hf)},
                         {"num_layers", double(num_routers(c))}});
  return out;
}

program::AttrSet plan_attrs(const config::Config& c, int64_t num_tokens) {
  return {{"experts", double(c.moe.num_experts)},
          {"top_k", double(c.moe.top_k)},
          {"capacity", double(expert_capacity(c, num_tokens))},
          {"policy", c.moe.drop_policy == "probs" ? 0.0 : 1.0},
          {"pad", double(c.moe.pad_to_capacity)}};
}

program::AttrSet activation_attrs(const config::Config& c) {
  if (c.model.activation == "swiglu") return {{"activation", 0}};
  return {{"activation", 1}, {"limit", 7.0}, {"alpha", 1.702}};
}

}  // namespace pleat::model
