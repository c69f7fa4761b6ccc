#include "model/overflow.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/decoder.h"
#include "program/overflow.h"

namespace pleat::model {

ExpertRows expert_rows(const config::Config& c, const Mesh& mesh) {
  const auto& e = c.moe;
  ExpertRows out;
  if (e.num_experts == 0) return out;
  const int64_t tokens = c.train.micro_batch * c.train.seq_len / (mesh.cp * mesh.tp);
  const int64_t own = e.num_experts / mesh.ep,
                capacity = expert_capacity(c, tokens / mesh.pieces) * mesh.pieces;
  const int64_t dropless = tokens * std::min(e.top_k, own);
  const int64_t of_source = capacity == 0       ? dropless
                            : e.pad_to_capacity ? capacity * own
                                                : std::min(dropless, capacity * own);
  out.maximum = of_source * mesh.size(program::Group::Dispatch);
  // Every expert rank of a group gets its part of all ranks' choices.
  const int64_t balanced = tokens * e.top_k * mesh.etp;
  out.expected = e.pad_to_capacity ? out.maximum : std::min(balanced, out.maximum);  // padding is computed on
  out.budget = out.maximum;
  if (e.token_budget > 0 && mesh.ep > 1 && !e.pad_to_capacity)
    out.budget = std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(e.token_budget * static_cast<double>(balanced))), 1, out.maximum);
  return out;
}

std::string overflow_fault(std::span<const int64_t> overflow, const config::Config& config,
                           const Mesh& mesh) {
  const auto most = std::max_element(overflow.begin(), overflow.end(), [](int64_t a, int64_t b) {
    return program::overflow_rows(a) < program::overflow_rows(b);
  });
  if (most == overflow.end() || *most == 0) return "";
  const ExpertRows room = expert_rows(config, mesh);
  const int64_t rows = program::overflow_rows(*most);
  const double balanced = static_cast<double>(config.train.micro_batch * config.train.seq_len /
                                              (mesh.cp * mesh.tp) * config.moe.top_k * mesh.etp);
  const double factor = std::ceil(static_cast<double>(rows) / balanced * 100) / 100;
  return fmt::format(
      "layer {}: the experts of rank {} need {} rows, moe.token_budget = {} has room for {}; "
      "moe.token_budget = {} would fit this step",
      most - overflow.begin(), program::overflow_rank(*most), rows, config.moe.token_budget, room.budget,
      factor);
}

bool may_rerun(const config::Config& config, std::span<const program::Program> programs) {
  return config.moe.overflow == "rerun" &&
         std::any_of(programs.begin(), programs.end(), [](const program::Program& p) {
           return std::any_of(p.values.begin(), p.values.end(),
                              [](const program::Value& v) { return v.name == "overflow"; });
         });
}

config::Config rerun_config(config::Config c) {
  c.moe.token_budget = 0;
  auto& modules = c.recompute.modules;
  const auto holds = [&](const char* name) {
    return std::find(modules.begin(), modules.end(), name) != modules.end();
  };
  if (!holds("experts") && !holds("layer")) modules.push_back("experts");
  // What is computed again is not there to be offloaded.
  const bool wider = c.recompute.layers != "all";
  c.recompute.layers = "all";
  const std::vector<bool> layers = config::offload_layers(c);
  bool dense = false;
  for (size_t i = 0; i < layers.size(); ++i)
    dense |= layers[i] && !config::is_moe_layer(c, static_cast<int64_t>(i));
  std::erase_if(c.offload.modules, [&](const std::string& module) {
    if (module == "layer" || module == "attn_norm") return false;  // the input of a layer always is
    return wider || holds("layer") || module == "expert_up" || (module == "activation" && !dense);
  });
  return c;
}

}  // namespace pleat::model
