#include "exchange/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/decoder.h"

namespace pleat::exchange {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kTrainingOnly[] = {
    "model.dtype:",          "model.init_std:",      "model.scale_residual_init:", "moe.router_dtype:",
    "moe.load_balancing:",   "moe.aux_coef:",        "moe.aux_convention:",        "moe.global_aux_form:",
    "moe.bias_update_rate:", "moe.z_coef:",          "moe.input_jitter:",          "moe.capacity_factor:",
    "moe.drop_policy:",      "moe.pad_to_capacity:", "moe.token_budget:",          "moe.overflow:",
    "model.padding_token:",
};

// One spelling for settings that compute the same.
config::Config canonical(config::Config c) {
  auto& e = c.moe;
  auto& m = c.model;
  if (e.num_experts > 0) {
    // Softmax over all experts and renormalised over the chosen is the softmax over the chosen.
    if (e.score == "softmax" && e.top_k > 1 && e.pre_softmax && e.renormalize) e.pre_softmax = false;
    if (e.top_k == 1 && !e.renormalize_single) e.renormalize = false;
    if (e.top_k > 1) e.renormalize_single = false;
    if (e.score == "softmax" && e.top_k > 1 && !e.pre_softmax) e.renormalize = true;
    std::vector<int64_t> pattern;
    for (int64_t i = 0; i < m.num_layers; ++i) pattern.push_back(config::is_moe_layer(c, i));
    m.moe_layer_freq = pattern;
    m.leading_dense_layers = 0;
    if (std::find(pattern.begin(), pattern.end(), 0) == pattern.end()) m.ffn_hidden_size = 0;
  }
  if (m.sliding_window > 0 && !m.window_layers.empty()) {
    std::vector<int64_t> windows;
    for (int64_t i = 0; i < m.num_layers; ++i)
      windows.push_back(m.window_layers[static_cast<size_t>(i) % m.window_layers.size()]);
    m.window_layers = windows;
  }
  return c;
}

ordered_json common(const config::Config& c, const char* architecture, const char* model_type) {
  const auto& m = c.model;
  ordered_json rope = {{"rope_theta", m.rope_theta}, {"rope_type", m.rope_type}};
  if (m.rope_type != "default") rope["factor"] = m.rope_factor;
  if (m.rope_original_length > 0) rope["original_max_position_embeddings"] = m.rope_original_length;
  if (m.rope_type == "llama3")
    rope["low_freq_factor"] = m.rope_low_freq_factor, rope["high_freq_factor"] = m.rope_high_freq_factor;
  if (m.rope_type == "yarn")
    rope["beta_fast"] = m.rope_beta_fast, rope["beta_slow"] = m.rope_beta_slow,
    rope["truncate"] = m.rope_truncate, rope["attention_factor"] = m.rope_attention_factor;
  ordered_json j = {{"architectures", {architecture}},
                    {"model_type", model_type},
                    {"vocab_size", m.vocab_size},
                    {"hidden_size", m.hidden_size},
                    {"num_hidden_layers", m.num_layers},
                    {"num_attention_heads", m.num_heads},
                    {"num_key_value_heads", m.num_kv_heads},
                    {"head_dim", m.head_dim},
                    {"hidden_act", "silu"},
                    {"max_position_embeddings", std::max(c.train.seq_len, m.rope_original_length)},
                    {"initializer_range", m.init_std},
                    {"rms_norm_eps", m.norm_eps},
                    {"tie_word_embeddings", m.tie_embeddings},
                    {"rope_theta", m.rope_theta},
                    {"rope_parameters", rope},
                    {"attention_dropout", 0.0},
                    {"use_cache", true},
                    {"bos_token_id", nullptr},
                    {"eos_token_id", nullptr},
                    {"pad_token_id", nullptr}};
  if (m.padding_token >= 0) j["pad_token_id"] = m.padding_token;
  return j;
}

void add_windows(ordered_json& j, const config::Config& c, bool per_layer) {
  const auto& m = c.model;
  j["sliding_window"] = m.sliding_window > 0 ? ordered_json(m.sliding_window) : ordered_json(nullptr);
  if (!per_layer || m.sliding_window == 0) return;
  j["use_sliding_window"] = true;
  j["layer_types"] = ordered_json::array();
  for (int64_t i = 0; i < m.num_layers; ++i)
    j["layer_types"].push_back(m.window_layers[static_cast<size_t>(i) % m.window_layers.size()]
                                   ? "sliding_attention"
                                   : "full_attention");
}

void add_experts(ordered_json& j, const config::Config& c, const char* count_key, const char* width_key) {
  const auto& e = c.moe;
  j[count_key] = e.num_experts;
  j["num_experts_per_tok"] = e.top_k;
  j[width_key] = e.ffn_hidden_size;
  j["norm_topk_prob"] = e.top_k == 1 ? e.renormalize_single : !e.pre_softmax || e.renormalize;
  const model::AuxCoefficients aux = model::aux_coefficients(c);
  j["router_aux_loss_coef"] = aux.micro;
  j["output_router_logits"] = false;
}

// Qwen's way to say which layers have experts.
void add_pattern(ordered_json& j, const config::Config& c) {
  j["decoder_sparse_step"] = 1;
  j["mlp_only_layers"] = ordered_json::array();
  for (int64_t i = 0; i < c.model.num_layers; ++i)
    if (!config::is_moe_layer(c, i)) j["mlp_only_layers"].push_back(i);
  // Needed by the reader of the file even where no layer is dense.
  j["intermediate_size"] = c.model.ffn_hidden_size > 0 ? c.model.ffn_hidden_size : c.moe.ffn_hidden_size;
}

std::vector<ordered_json> proposals(const config::Config& c) {
  std::vector<ordered_json> out;
  if (c.moe.num_experts == 0) {
    ordered_json j = common(c, "LlamaForCausalLM", "llama");
    j["intermediate_size"] = c.model.ffn_hidden_size;
    j["attention_bias"] = c.model.qkv_bias;
    j["mlp_bias"] = c.model.mlp_bias;
    out.push_back(j);
    j = common(c, "Qwen3ForCausalLM", "qwen3");
    j["intermediate_size"] = c.model.ffn_hidden_size;
    j["attention_bias"] = c.model.qkv_bias;
    add_windows(j, c, true);
    out.push_back(j);
    return out;
  }
  ordered_json j = common(c, "MixtralForCausalLM", "mixtral");
  add_experts(j, c, "num_local_experts", "intermediate_size");
  j.erase("norm_topk_prob");
  j["router_jitter_noise"] = 0.0;
  add_windows(j, c, false);
  out.push_back(j);
  j = common(c, "Qwen3MoeForCausalLM", "qwen3_moe");
  add_pattern(j, c);
  add_experts(j, c, "num_experts", "moe_intermediate_size");
  j["attention_bias"] = c.model.qkv_bias;
  // This family has one window for all layers.
  add_windows(j, c, false);
  if (c.model.sliding_window > 0) j["use_sliding_window"] = true;
  out.push_back(j);
  j = common(c, "OlmoeForCausalLM", "olmoe");
  add_experts(j, c, "num_experts", "intermediate_size");
  j["attention_bias"] = c.model.qkv_bias;
  j["clip_qkv"] = nullptr;
  out.push_back(j);
  j = common(c, "Qwen2MoeForCausalLM", "qwen2_moe");
  add_pattern(j, c);
  add_experts(j, c, "num_experts", "moe_intermediate_size");
  j["shared_expert_intermediate_size"] = c.moe.shared_ffn_hidden_size;
  j["qkv_bias"] = c.model.qkv_bias;
  add_windows(j, c, true);
  if (c.moe.shared_ffn_hidden_size > 0) out.push_back(j);
  return out;
}

}  // namespace

std::vector<std::string> forward_differences(const config::Config& described, const config::Config& trained) {
  std::vector<std::string> out;
  for (const std::string& d :
       config::differences(canonical(config::resolve(described)), canonical(config::resolve(trained)))) {
    if (!d.starts_with("model.") && !d.starts_with("moe.")) continue;
    // Layers of multi-token prediction take no part in the forward: a model without them is still described.
    if (d.starts_with("model.num_mtp_layers:") && trained.model.num_mtp_layers == 0) continue;
    const auto is = [&](std::string_view key) { return d.starts_with(key); };
    if (std::none_of(std::begin(kTrainingOnly), std::end(kTrainingOnly), is)) out.push_back(d);
  }
  // A bias on the scores and a Sinkhorn choice pick experts, unlike balancing by a loss.
  for (const char* kind : {"bias", "sinkhorn"})
    if (model::balances_by(described, kind) != model::balances_by(trained, kind))
      out.push_back(fmt::format("moe.load_balancing: {} \"{}\"",
                                model::balances_by(trained, kind) ? "has no" : "needs", kind));
  return out;
}

Description describe(const config::Config& trained) {
  Description nearest;
  std::vector<std::string> fewest;
  std::vector<std::string> tried;
  for (const ordered_json& j : proposals(trained)) {
    Description d;
    d.json = j.dump(2) + "\n";
    const std::string type = j.at("model_type");
    std::vector<std::string> differences;
    try {
      d.model = family::parse_model_config(d.json, "config.json of family " + type);
      differences = forward_differences(d.model.config, trained);
    } catch (const base::Error& e) {
      differences = {e.what()};
    }
    if (differences.empty()) return d;
    if (tried.empty() || differences.size() < fewest.size()) nearest = d, fewest = differences;
    tried.push_back(type);
  }
  const std::string name =
      nearest.model.family ? std::string(nearest.model.family->model_type) : tried.front();
  base::fail(
      "no family of Hugging Face models can express this model (tried {}); the nearest, {}, differs in (it "
      "-> this model):\n  {}{}",
      fmt::join(tried, ", "), name, fmt::join(fewest, "\n  "),
      trained.model.num_mtp_layers > 0 ? "\nWith --without-mtp, layers of multi-token prediction are left out"
                                       : "");
}

}  // namespace pleat::exchange
