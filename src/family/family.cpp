#include "family/family.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "family/check_description.h"
#include "family/config_reader.h"
#include "family/descriptions.h"
#include "safetensors/config_json.h"
#include "safetensors/quantized/scheme.h"

namespace pleat::family {

const std::vector<const Family*>& families() {
  static const std::vector<const Family*> all = {&kLlama, &kQwen3,      &kMixtral,    &kQwen2Moe, &kQwen3Moe,
                                                 &kOlmoe, &kDeepseekV2, &kDeepseekV3, &kGptOss};
  return all;
}

const Family& find_family(std::string_view model_type) {
  // Kimi-K2 is DeepSeek-V3 under another name.
  if (model_type == "kimi_k2") model_type = "deepseek_v3";
  std::string known;
  for (const Family* f : families()) {
    if (f->model_type == model_type) return *f;
    known += fmt::format(" {}", f->model_type);
  }
  base::fail("model_type \"{}\" is not known; known are:{}", model_type.substr(0, 80), known);
}

void read_softmax_router(const ConfigReader& in, config::Config& c, bool normalised_by_default) {
  const bool normalised = in.flag("norm_topk_prob", normalised_by_default);
  // With one expert per token a softmax over the chosen ones would be 1 and have no gradient; the config then
  // wants the softmax over all, renormalised, which says the same.
  c.moe.pre_softmax = !normalised || c.moe.top_k == 1;
  if (c.moe.pre_softmax && c.moe.top_k > 1) c.moe.renormalize = normalised;
  c.moe.renormalize_single = normalised && c.moe.top_k == 1;
}

std::string quantization_note(const FamilyConfig& model) {
  if (model.quantization.empty()) return {};
  return fmt::format("weights are stored as {}, and dequantized as they are read", model.quantization);
}

FamilyConfig parse_model_config(const std::string& text, const std::string& source,
                                const std::vector<std::string>& sets) {
  const nlohmann::json json = safetensors::parse_config(text, source);
  ConfigReader reader(json, source);
  FamilyConfig out;
  if (!reader.has("model_type")) base::fail("{}: key 'model_type' is missing", source);
  out.family = &find_family(reader.text("model_type", ""));
  check_description(reader, reader.integer("num_hidden_layers"));
  out.family->read(reader, out.config);
  if (out.family->default_aux_coef > 0 && out.config.moe.num_experts > 0) {
    out.aux_coef = reader.real("router_aux_loss_coef", out.family->default_aux_coef);
    reader.read_auxiliary_loss(out.config, out.family->default_aux_coef);
  }
  if (out.config.moe.num_experts > 0 && config::num_moe_layers(out.config) == 0) {
    // The file describes experts that none of its layers has: a dense model.
    out.config.moe = {};
    out.config.model.leading_dense_layers = 0;
    out.config.model.moe_layer_freq = config::ModelConfig{}.moe_layer_freq;
    out.notes.push_back("the experts are not used: every layer is dense");
  }
  if (reader.real("attention_dropout", 0) != 0) out.notes.push_back("attention_dropout is not used");
  out.quantization = safetensors::read_scheme(json, source).text();
  if (const std::string note = quantization_note(out); !note.empty()) out.notes.push_back(note);
  out.num_mtp_declared = out.config.model.num_mtp_layers;
  // The text form and back: keys, ranges and combinations are checked exactly as for a config a person wrote.
  out.config = config::parse(config::to_toml(out.config), sets, source);
  return out;
}

FamilyConfig read_model_config(const std::string& folder, const std::vector<std::string>& sets) {
  return parse_model_config(safetensors::read_config_text(folder), folder + "/config.json", sets);
}

}  // namespace pleat::family
