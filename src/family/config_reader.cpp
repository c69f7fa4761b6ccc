#include "family/config_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/rope.h"

namespace pleat::family {

using nlohmann::json;

namespace {

const json& need(const json& j, const char* key, const std::string& source) {
  if (!j.contains(key) || j[key].is_null()) base::fail("{}: key '{}' is missing", source, key);
  return j[key];
}

int64_t as_integer(const json& v, const char* key, const std::string& source) {
  if (!v.is_number_integer())
    base::fail("{}: key '{}' must be an integer, got {}", source, key, v.dump().substr(0, 60));
  if (v.is_number_unsigned() && v.get<uint64_t>() > (uint64_t{1} << 53))
    base::fail("{}: key '{}' is too large: {}", source, key, v.dump());
  return v.get<int64_t>();
}

double as_real(const json& v, const char* key, const std::string& source) {
  if (!v.is_number())
    base::fail("{}: key '{}' must be a number, got {}", source, key, v.dump().substr(0, 60));
  return v.get<double>();
}

}  // namespace

bool ConfigReader::has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
int64_t ConfigReader::integer(const char* key) const {
  return as_integer(need(json_, key, source_), key, source_);
}
int64_t ConfigReader::integer(const char* key, int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}
double ConfigReader::real(const char* key, double otherwise) const {
  return has(key) ? as_real(json_[key], key, source_) : otherwise;
}

bool ConfigReader::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_[key].is_boolean())
    base::fail("{}: key '{}' must be true or false, got {}", source_, key, json_[key].dump().substr(0, 60));
  return json_[key].get<bool>();
}

std::string ConfigReader::text(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!json_[key].is_string())
    base::fail("{}: key '{}' must be a string, got {}", source_, key, json_[key].dump().substr(0, 60));
  return json_[key].get<std::string>();
}

std::vector<int64_t> ConfigReader::integers(const char* key) const {
  std::vector<int64_t> out;
  if (!has(key)) return out;
  if (!json_[key].is_array() || json_[key].size() > 4096)
    base::fail("{}: key '{}' must be a list of at most 4096 integers", source_, key);
  for (const json& v : json_[key]) out.push_back(as_integer(v, key, source_));
  return out;
}

std::vector<std::string> ConfigReader::texts(const char* key) const {
  std::vector<std::string> out;
  if (!has(key)) return out;
  if (!json_[key].is_array() || json_[key].size() > 4096)
    base::fail("{}: key '{}' must be a list of at most 4096 strings", source_, key);
  for (const json& v : json_[key]) {
    if (!v.is_string()) base::fail("{}: key '{}' must hold strings", source_, key);
    out.push_back(v.get<std::string>());
  }
  return out;
}

void ConfigReader::require_text(const char* key, const std::string& value) const {
  if (const std::string got = text(key, value); got != value)
    base::fail("{}: {} = \"{}\" is not supported; needed is \"{}\"", source_, key, got.substr(0, 60), value);
}

void ConfigReader::require_flag(const char* key, bool value) const {
  if (flag(key, value) != value)
    base::fail("{}: {} = {} is not supported; needed is {}", source_, key, !value, value);
}

void ConfigReader::require_real(const char* key, double value) const {
  if (const double got = real(key, value); got != value)
    base::fail("{}: {} = {} is not supported; needed is {}", source_, key, got, value);
}

void ConfigReader::require_absent(const char* key) const {
  if (has(key))
    base::fail("{}: key '{}' = {} is not supported; it must be null or absent", source_, key,
               json_[key].dump().substr(0, 60));
}

// transformers 5 keeps everything in rope_parameters; before, rope_theta stood alone and rope_scaling beside
// it. A file that has both is read by transformers as though it had rope_scaling alone, unless that is empty.
const char* ConfigReader::rope_key() const {
  return has("rope_scaling") && !json_["rope_scaling"].empty() ? "rope_scaling" : "rope_parameters";
}

double ConfigReader::rope_real(const char* key, double otherwise) const {
  const char* object = rope_key();
  if (!has(object) || !json_[object].is_object() || !json_[object].contains(key) ||
      json_[object][key].is_null())
    return otherwise;
  return as_real(json_[object][key], key, source_);
}

void ConfigReader::read_rope(config::Config& c, double default_theta) const {
  auto& m = c.model;
  const char* key = rope_key();
  m.rope_theta = real("rope_theta", default_theta);
  if (!has(key)) return;
  const json& r = json_[key];
  if (!r.is_object()) base::fail("{}: key '{}' must be an object", source_, key);
  for (const auto& [name, value] : r.items())
    if (value.is_object())
      base::fail("{}: {} has settings of its own for \"{}\"; needed is one set for all layers", source_, key,
                 name.substr(0, 60));
  const auto get = [&](const char* name, double otherwise) {
    return r.contains(name) && !r[name].is_null() ? as_real(r[name], name, source_) : otherwise;
  };
  const auto needed = [&](const char* name) {
    if (!r.contains(name) || r[name].is_null())
      base::fail("{}: {} of a \"{}\" rotary embedding has no '{}', which it needs", source_, key, m.rope_type,
                 name);
    return as_real(r[name], name, source_);
  };
  const auto type_of = [&](const char* name) {
    return r.contains(name) && r[name].is_string() ? r[name].get<std::string>() : std::string();
  };
  std::string type = type_of("rope_type");
  if (type.empty()) type = type_of("type");
  if (type.empty()) type = "default";
  m.rope_theta = get("rope_theta", m.rope_theta);
  // transformers ignores it in these families or fails on it; rotating a part of the head would be a third
  // answer.
  if (get("partial_rotary_factor", 1.0) != 1.0)
    base::fail("{}: partial_rotary_factor = {} is not supported in this family; needed is 1", source_,
               get("partial_rotary_factor", 1.0));
  if (type == "default") return;
  if (type != "linear" && type != "llama3" && type != "yarn")
    base::fail("{}: rotary type \"{}\" is not supported; known are default, linear, llama3, yarn", source_,
               type);
  m.rope_type = type;
  const int64_t max_length = integer("max_position_embeddings", 0);
  if (type != "linear")
    m.rope_original_length = integer(
        "original_max_position_embeddings",
        static_cast<int64_t>(get("original_max_position_embeddings", static_cast<double>(max_length))));
  // Named and null, yarn's is the ratio of the lengths.
  m.rope_factor = type == "yarn" && r.contains("factor") && r["factor"].is_null()
                      ? static_cast<double>(max_length) / static_cast<double>(m.rope_original_length)
                      : needed("factor");
  if (type == "llama3") {
    m.rope_low_freq_factor = needed("low_freq_factor");
    m.rope_high_freq_factor = needed("high_freq_factor");
  }
  if (type == "yarn") {
    m.rope_beta_fast = get("beta_fast", 32.0);
    m.rope_beta_slow = get("beta_slow", 1.0);
    if (r.contains("truncate") && r["truncate"].is_boolean()) m.rope_truncate = r["truncate"].get<bool>();
    const double mscale = get("mscale", 0), all = get("mscale_all_dim", 0);
    const double derived = mscale != 0 && all != 0 ? model::yarn_temperature(m.rope_factor, mscale) /
                                                         model::yarn_temperature(m.rope_factor, all)
                                                   : model::yarn_temperature(m.rope_factor, 1);
    m.rope_attention_factor = get("attention_factor", derived);
  }
}

// nn.Embedding's padding_idx, which counts from the end where it is negative.
int64_t ConfigReader::padding_token(int64_t vocab_size, int64_t otherwise) const {
  if (!has("pad_token_id")) return json_.contains("pad_token_id") ? -1 : otherwise;
  const int64_t id = integer("pad_token_id");
  if (id < -vocab_size || id >= vocab_size)
    base::fail("{}: pad_token_id = {} is outside the vocabulary of {}; needed is a token, or null", source_,
               id, vocab_size);
  return id < 0 ? id + vocab_size : id;
}

void ConfigReader::read_decoder(config::Config& c, const Defaults& defaults) const {
  auto& m = c.model;
  require_text("hidden_act", "silu");
  m.vocab_size = integer("vocab_size");
  m.hidden_size = integer("hidden_size");
  m.num_layers = integer("num_hidden_layers");
  m.num_heads = integer("num_attention_heads");
  m.num_kv_heads = integer("num_key_value_heads", m.num_heads);
  if (m.hidden_size < 1 || m.num_heads < 1)
    base::fail("{}: hidden_size = {} and num_attention_heads = {} must be positive", source_, m.hidden_size,
               m.num_heads);
  m.head_dim = integer("head_dim", m.hidden_size / m.num_heads);
  m.norm_eps = real("rms_norm_eps", defaults.norm_eps);
  m.tie_embeddings = flag("tie_word_embeddings", false);
  m.init_std = real("initializer_range", 0.02);
  m.scale_residual_init = false;
  m.padding_token = padding_token(m.vocab_size, defaults.padding_token);
  read_rope(c, defaults.rope_theta);
}

void ConfigReader::read_experts(config::Config& c, const char* width_key) const {
  auto& e = c.moe;
  e.num_experts = has("num_experts")         ? integer("num_experts")
                  : has("num_local_experts") ? integer("num_local_experts")
                                             : integer("n_routed_experts");
  e.top_k = integer("num_experts_per_tok");
  e.ffn_hidden_size = integer(width_key);
  e.load_balancing = {"none"};
  e.aux_coef = {};
}

void ConfigReader::read_auxiliary_loss(config::Config& c, double default_coef) const {
  const double coef = real("router_aux_loss_coef", default_coef);
  if (!flag("output_router_logits", false) || coef == 0) return;
  c.moe.load_balancing = {"aux"};
  c.moe.aux_coef = {coef};
  c.moe.aux_convention = "hf";
}

void ConfigReader::read_sparse_pattern(config::Config& c) const {
  const int64_t step = integer("decoder_sparse_step", 1);
  const std::vector<int64_t> dense = integers("mlp_only_layers");
  if (step < 1) base::fail("{}: decoder_sparse_step = {} must be at least 1", source_, step);
  if (c.model.num_layers < 1 || c.model.num_layers > 4096)
    base::fail("{}: num_hidden_layers = {} is not between 1 and 4096", source_, c.model.num_layers);
  if (step == 1 && dense.empty()) return;
  c.model.moe_layer_freq.clear();
  for (int64_t i = 0; i < c.model.num_layers; ++i)
    c.model.moe_layer_freq.push_back((i + 1) % step == 0 &&
                                     std::find(dense.begin(), dense.end(), i) == dense.end());
}

void ConfigReader::read_windows(config::Config& c, WindowRule rule, int64_t otherwise) const {
  auto& m = c.model;
  if (m.num_layers < 1 || m.num_layers > 4096)
    base::fail("{}: num_hidden_layers = {} is not between 1 and 4096", source_, m.num_layers);
  const bool must_be_used = rule != WindowRule::All && rule != WindowRule::Alternate;
  const bool is_used = !must_be_used || flag("use_sliding_window", false);
  const bool named = json_.contains("sliding_window") ? has("sliding_window") : otherwise != 0;
  const int64_t window = integer("sliding_window", otherwise), border = integer("max_window_layers", 28);
  const auto by_rule = [&](int64_t i) {
    const bool alternate = i % 2 == 0;
    switch (rule) {
      case WindowRule::All:
      case WindowRule::AllIfUsed:
        return is_used && named;
      case WindowRule::Alternate:
        return alternate;
      case WindowRule::AlternateBelow:
        return is_used && alternate && i < border;
      case WindowRule::From:
        return is_used && named && i >= border;
    }
    return false;
  };
  std::vector<int64_t> layers;
  for (int64_t i = 0; i < m.num_layers; ++i) layers.push_back(by_rule(i));
  if (const std::vector<std::string> types = texts("layer_types"); !types.empty()) {
    if (static_cast<int64_t>(types.size()) != m.num_layers)
      base::fail("{}: layer_types has {} entries for {} layers", source_, types.size(), m.num_layers);
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] != "full_attention" && types[i] != "sliding_attention")
        base::fail("{}: layer type \"{}\" is not supported", source_, types[i].substr(0, 60));
      const int64_t slides = types[i] == "sliding_attention";
      if ((rule == WindowRule::All || rule == WindowRule::AllIfUsed) && slides != layers[i])
        base::fail(
            "{}: layer_types has \"{}\", but this family has one kind of attention in all layers, and "
            "sliding_window makes it \"{}\"",
            source_, types[i], layers[i] ? "sliding_attention" : "full_attention");
      layers[i] = slides;
    }
  }
  if (std::find(layers.begin(), layers.end(), 1) == layers.end()) return;
  if (!is_used || !named)
    base::fail("{}: some layers are \"sliding_attention\", but {}", source_,
               is_used ? "sliding_window is null; needed is a number of tokens"
                       : "use_sliding_window is false; needed is true");
  if (window < 1)
    base::fail("{}: sliding_window = {} leaves a token nothing to attend to; needed is 1 or more{}", source_,
               window, rule == WindowRule::Alternate ? "" : ", or null for none");
  m.sliding_window = window;
  m.window_layers = layers;
}

}  // namespace pleat::family
