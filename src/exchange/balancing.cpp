#include "exchange/balancing.h"

#include <fmt/ranges.h>

#include "model/decoder.h"

namespace pleat::exchange {

std::string balancing_note(const family::FamilyConfig& described, const config::Config& chosen) {
  const config::MoeConfig &said = described.config.moe, &moe = chosen.moe;
  if (moe.num_experts == 0) return {};
  constexpr const char* kNone = "--set 'moe.load_balancing=[\"none\"]'";
  if (moe.load_balancing != said.load_balancing || moe.aux_coef != said.aux_coef ||
      moe.bias_update_rate != said.bias_update_rate)
    return fmt::format("experts are balanced by {} because --set asked for it",
                       fmt::join(moe.load_balancing, " and "));
  if (model::balances_by(chosen, "aux"))
    return fmt::format(
        "experts are balanced by the auxiliary loss with coefficient {}, because config.json has "
        "output_router_logits = true: transformers trains with it too. To train without it, import with {}",
        moe.aux_coef.front(), kNone);
  if (model::balances_by(chosen, "bias"))
    return "experts are not balanced: the routers' correction biases are used as they are and do not move, "
           "as in "
           "transformers. To move them, import with --set moe.bias_update_rate=0.001";
  if (described.family->default_aux_coef == 0)
    return "experts are not balanced: transformers has no auxiliary loss for this family. For one, import "
           "with "
           "--set 'moe.load_balancing=[\"seq_aux\"]' --set 'moe.aux_coef=[0.001]'";
  return fmt::format(
      "experts are not balanced, because config.json {}: transformers trains without the auxiliary loss too. "
      "For "
      "it, import with --set 'moe.load_balancing=[\"aux\"]' --set 'moe.aux_coef=[{}]' --set "
      "'moe.aux_convention=\"hf\"'",
      described.aux_coef == 0 ? "has router_aux_loss_coef = 0" : "does not set output_router_logits",
      described.aux_coef == 0 ? described.family->default_aux_coef : described.aux_coef);
}

}  // namespace pleat::exchange
