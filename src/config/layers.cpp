// Which layer is what: the MoE pattern and layer ranges.
#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/error.h"
#include "config/config.h"
#include "config/quote.h"

namespace pleat::config {

namespace {

struct LayerRange {
  int64_t first, last;
};

// A key that names layers, and what it says.
struct NamedLayers {
  std::string_view key;
  const std::string& text;
};

int64_t parse_layer(std::string_view text, const NamedLayers& named) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0)
    base::fail("{} = {}: '{}' is not a layer; write \"all\", or numbers and ranges such as \"0-3,7\"",
               named.key, quote(named.text), printable(text));
  return value;
}

LayerRange parse_range(std::string_view text, const NamedLayers& named) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) {
    const int64_t layer = parse_layer(text, named);
    return {layer, layer};
  }
  return {parse_layer(text.substr(0, dash), named), parse_layer(text.substr(dash + 1), named)};
}

std::vector<bool> parse_layers(const Config& config, const NamedLayers& named) {
  const int64_t num_layers = num_all_layers(config);
  if (named.text == "all") return std::vector<bool>(static_cast<size_t>(num_layers), true);

  std::vector<bool> chosen(static_cast<size_t>(num_layers), false);
  std::string_view rest = named.text;
  for (bool more = true; more;) {
    const size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    const LayerRange range = parse_range(rest.substr(0, comma), named);
    if (more) rest.remove_prefix(comma + 1);
    if (range.first > range.last || range.last >= num_layers)
      base::fail("{} = {}: {}-{} does not lie within layers 0-{} (model.num_layers = {}{})", named.key,
                 quote(named.text), range.first, range.last, num_layers - 1, config.model.num_layers,
                 config.model.num_mtp_layers > 0
                     ? fmt::format(", model.num_mtp_layers = {}", config.model.num_mtp_layers)
                     : "");
    for (int64_t layer = range.first; layer <= range.last; ++layer) {
      if (chosen[static_cast<size_t>(layer)])
        base::fail("{} = {} names layer {} twice; name each layer once", named.key, quote(named.text), layer);
      chosen[static_cast<size_t>(layer)] = true;
    }
  }
  return chosen;
}

}  // namespace

int64_t last_own_layer(const ModelConfig& model, int64_t layer) {
  return std::min(layer, model.num_layers - 1);
}

int64_t num_all_layers(const Config& config) { return config.model.num_layers + config.model.num_mtp_layers; }

bool is_moe_layer(const Config& config, int64_t layer) {
  const ModelConfig& model = config.model;
  layer = last_own_layer(model, layer);
  if (config.moe.num_experts == 0 || layer < model.leading_dense_layers || model.moe_layer_freq.empty())
    return false;
  if (model.moe_layer_freq.size() == 1) {
    const int64_t every = model.moe_layer_freq[0];
    return every > 0 && layer % every == 0;
  }
  return layer < static_cast<int64_t>(model.moe_layer_freq.size()) &&
         model.moe_layer_freq[static_cast<size_t>(layer)] != 0;
}

int64_t num_moe_layers(const Config& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.model.num_layers; ++layer) count += is_moe_layer(config, layer);
  return count;
}

bool has_low_precision(const Config& config, int64_t layer) {
  return config.precision.recipe != "none" && layer >= config.precision.wide_first &&
         layer < num_all_layers(config) - config.precision.wide_last;
}

std::vector<bool> recompute_layers(const Config& config) {
  if (config.recompute.modules.empty())
    return std::vector<bool>(static_cast<size_t>(num_all_layers(config)), false);
  return parse_layers(config, {"recompute.layers", config.recompute.layers});
}

std::vector<bool> offload_layers(const Config& config) {
  if (config.offload.modules.empty())
    return std::vector<bool>(static_cast<size_t>(num_all_layers(config)), false);
  return parse_layers(config, {"offload.layers", config.offload.layers});
}

}  // namespace pleat::config
