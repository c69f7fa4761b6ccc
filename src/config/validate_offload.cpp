#include <algorithm>

#include "base/error.h"
#include "config/quote.h"
#include "config/validate.h"

namespace pleat::config {

// What the keys alone tell. Whether a module saves anything, the pass sees (schedule/pass/offload.h).
void validate_offload(const Config& c) {
  const std::vector<bool> layers = offload_layers(c), recomputed = recompute_layers(c);
  const auto& asked = c.offload.modules;
  const auto holds = [](const std::vector<std::string>& list, std::string_view module) {
    return std::find(list.begin(), list.end(), module) != list.end();
  };
  if (asked.size() > 1 && holds(asked, "layer"))
    base::fail(
        "offload.modules holds \"layer\", which is everything a layer saves, and others beside it; needed is "
        "\"layer\" alone, or the others without it");
  for (const std::string& module : asked) {
    if (!holds(c.recompute.modules, module)) continue;
    for (size_t layer = 0; layer < layers.size(); ++layer)
      if (layers[layer] && recomputed[layer])
        base::fail(
            "layer {} would have \"{}\" both recomputed and offloaded; a module of a layer is one of them: "
            "take it out of recompute.modules or offload.modules, or give them different layers with "
            "recompute.layers and offload.layers",
            layer, module);
  }
  if (!holds(asked, "expert_up")) return;
  for (size_t layer = 0; layer < layers.size(); ++layer)
    if (layers[layer] && is_moe_layer(c, static_cast<int64_t>(layer))) return;
  base::fail("offload.modules holds \"expert_up\", but none of the layers {} is MoE; remove it, or name others",
             c.offload.layers);
}

}  // namespace pleat::config
