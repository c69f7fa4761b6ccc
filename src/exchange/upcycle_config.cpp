#include "exchange/upcycle_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace pleat::exchange {
namespace {

using nlohmann::ordered_json;

void write_out_defaults(ordered_json& j, const config::ModelConfig& m, bool is_llama) {
  j["num_key_value_heads"] = m.num_kv_heads;
  j["head_dim"] = m.head_dim;
  j["rms_norm_eps"] = m.norm_eps;
  j["hidden_act"] = "silu";
  j["tie_word_embeddings"] = m.tie_embeddings;
  j["initializer_range"] = m.init_std;
  if (j.contains("rope_parameters") && j["rope_parameters"].is_object())
    j["rope_parameters"]["rope_theta"] = m.rope_theta;
  else
    j["rope_theta"] = m.rope_theta;
  if (!j.contains("max_position_embeddings")) j["max_position_embeddings"] = is_llama ? 2048 : 32768;
}

config::Config expected(const family::FamilyConfig& dense, const UpcycleOptions& o) {
  config::Config c = dense.config;
  c.moe = {};
  c.moe.num_experts = o.num_experts;
  c.moe.top_k = o.top_k;
  c.moe.ffn_hidden_size = dense.config.model.ffn_hidden_size / o.granularity;
  // With one expert per token the config says "softmax over the chosen" as "over all, normalised again".
  c.moe.pre_softmax = !o.normalized || o.top_k == 1;
  c.moe.renormalize = o.normalized || o.top_k == 1;
  c.moe.renormalize_single = o.normalized && o.top_k == 1;
  return c;
}

}  // namespace

std::string_view upcycled_family(const family::FamilyConfig& dense) {
  const std::string_view type = dense.family->model_type;
  if (dense.config.moe.num_experts > 0)
    base::fail("the model has {} experts already; an upcycle starts from a dense one",
               dense.config.moe.num_experts);
  if (type == "llama") return "mixtral";
  if (type == "qwen3") return "qwen3_moe";
  base::fail(
      "family {} has no counterpart with experts; needed is llama (becomes mixtral) or qwen3 (becomes "
      "qwen3_moe)",
      type);
}

Description upcycled_config(const family::FamilyConfig& dense, const std::string& dense_json,
                            const UpcycleOptions& o) {
  const std::string_view target = upcycled_family(dense);
  const config::ModelConfig& m = dense.config.model;
  const int64_t width = m.ffn_hidden_size / o.granularity;
  ordered_json j = ordered_json::parse(dense_json);
  write_out_defaults(j, m, target == "mixtral");
  j["model_type"] = target;
  j["num_experts_per_tok"] = o.top_k;
  j["router_aux_loss_coef"] = 0.001;
  // Routers that start from random rows are trained next, and balanced.
  j["output_router_logits"] = true;
  for (const char* key :
       {"mlp_bias", "pretraining_tp", "layer_types", "max_window_layers", "quantization_config"})
    j.erase(key);
  if (target == "mixtral") {
    if (!o.normalized)
      base::fail(
          "mixtral always normalises the probabilities of the chosen experts; a llama model cannot be "
          "upcycled without");
    j["architectures"] = {"MixtralForCausalLM"};
    j["num_local_experts"] = o.num_experts;
    j["intermediate_size"] = width;
    j["router_jitter_noise"] = 0.0;
    j["sliding_window"] = nullptr;
    j.erase("attention_bias");
  } else {
    j["architectures"] = {"Qwen3MoeForCausalLM"};
    j["num_experts"] = o.num_experts;
    j["moe_intermediate_size"] = width;
    j["norm_topk_prob"] = o.normalized;
    j["decoder_sparse_step"] = 1;
    j["mlp_only_layers"] = ordered_json::array();
    j["attention_bias"] = m.qkv_bias;
    // This family has one window for all layers.
    j["use_sliding_window"] = m.sliding_window > 0;
    j["sliding_window"] = m.sliding_window > 0 ? ordered_json(m.sliding_window) : ordered_json(nullptr);
  }

  Description out;
  out.json = j.dump(2) + "\n";
  out.model = family::parse_model_config(out.json, fmt::format("config.json of the {} model", target));
  const std::vector<std::string> differences = forward_differences(out.model.config, expected(dense, o));
  if (!differences.empty())
    base::fail("family {} cannot hold this {} model (what it would say -> what is needed):\n  {}", target,
               dense.family->model_type, fmt::join(differences, "\n  "));
  out.model.config = config::resolve(out.model.config);
  return out;
}

}  // namespace pleat::exchange
