#include "bench/cost_variants.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "base/error.h"
#include "model/block/attention_attrs.h"
#include "schedule/ranks.h"

namespace pleat::bench {
namespace {

using config::Config;

// How many of the first layers have every kind of layer there is.
int64_t layers_of_every_kind(const Config& c) {
  std::set<std::tuple<bool, bool, bool, bool>> kinds;
  int64_t enough = 1;
  const std::vector<bool> recompute = config::recompute_layers(c);
  for (int64_t i = 0; i < c.model.num_layers; ++i)
    if (kinds
            .insert({config::is_moe_layer(c, i), model::has_window(c.model, static_cast<int>(i)),
                     recompute[static_cast<size_t>(i)], config::has_low_precision(c, i)})
            .second)
      enough = i + 1;
  return enough;
}

void make_short(Config& c, int64_t dp) {
  const int64_t layers = layers_of_every_kind(c);
  c.asked.clear();  // it is not what was written any more
  // Layers keep what they are: those at the end that stay wide are no longer at the end.
  const int64_t wide_behind = config::num_all_layers(c) - c.precision.wide_last;
  c.model.num_layers = layers;
  c.precision.wide_last = std::max<int64_t>(0, config::num_all_layers(c) - wide_behind);
  if (c.offload.layers != "all") c.offload = {};
  if (!c.offload.modules.empty()) c.offload.fraction = 1, c.offload.keep_last = c.offload.min_bytes = 0;
  if (c.model.moe_layer_freq.size() > 1) c.model.moe_layer_freq.resize(static_cast<size_t>(layers));
  // The first gradient of a step is written, the others are added.
  c.train.num_microbatches = std::min(c.train.num_microbatches, 2 * dp);
  if (c.train.order == "loop") c.train.order = "1f1b";
  c.parallel.pp = c.parallel.vpp = 1;
  c.parallel.pipeline_layout.clear();
}

Config judged(Config c, int64_t ranks) {
  config::validate(c);
  c = config::resolve(c);
  schedule::fitted_mesh(c, schedule::layout_of(c, ranks));
  return c;
}

struct Size {
  const char* name;
  std::function<int64_t&(Config&)> of;
  std::function<bool(const Config&)> has;
};

}  // namespace

Config short_single(const Config& config) {
  Config c = config;
  make_short(c, 1);
  c.parallel = {};
  c.comm = {};
  c.moe.token_budget = 0;  // of rows that come from other ranks
  c.moe.overflow = "stop";
  c.device.threads = 1;
  return judged(std::move(c), 1);
}

CostVariants cost_variants(const Config& config, int64_t ranks) {
  const auto always = [](const Config&) { return true; };
  const auto experts = [](const Config& c) { return c.moe.num_experts > 0; };
  const auto latent = [](const Config& c) { return c.model.attention == "mla"; };
  const auto grouped = [&](const Config& c) { return !latent(c); };
  const Size sizes[] = {
      {"train.micro_batch", [](Config& c) -> int64_t& { return c.train.micro_batch; }, always},
      {"train.seq_len", [](Config& c) -> int64_t& { return c.train.seq_len; }, always},
      {"model.hidden_size", [](Config& c) -> int64_t& { return c.model.hidden_size; }, always},
      {"model.num_heads", [](Config& c) -> int64_t& { return c.model.num_heads; }, always},
      {"model.num_kv_heads", [](Config& c) -> int64_t& { return c.model.num_kv_heads; }, grouped},
      {"model.head_dim", [](Config& c) -> int64_t& { return c.model.head_dim; }, grouped},
      {"model.q_lora_rank", [](Config& c) -> int64_t& { return c.model.q_lora_rank; },
       [&](const Config& c) { return latent(c) && c.model.q_lora_rank > 0; }},
      {"model.kv_lora_rank", [](Config& c) -> int64_t& { return c.model.kv_lora_rank; }, latent},
      {"model.qk_nope_head_dim", [](Config& c) -> int64_t& { return c.model.qk_nope_head_dim; }, latent},
      {"model.qk_rope_head_dim", [](Config& c) -> int64_t& { return c.model.qk_rope_head_dim; }, latent},
      {"model.v_head_dim", [](Config& c) -> int64_t& { return c.model.v_head_dim; }, latent},
      {"model.ffn_hidden_size", [](Config& c) -> int64_t& { return c.model.ffn_hidden_size; },
       [](const Config& c) { return config::num_moe_layers(c) < c.model.num_layers; }},
      {"moe.ffn_hidden_size", [](Config& c) -> int64_t& { return c.moe.ffn_hidden_size; }, experts},
      {"moe.shared_ffn_hidden_size", [](Config& c) -> int64_t& { return c.moe.shared_ffn_hidden_size; },
       [](const Config& c) { return c.moe.num_experts > 0 && c.moe.shared_ffn_hidden_size > 0; }},
      {"moe.top_k", [](Config& c) -> int64_t& { return c.moe.top_k; }, experts},
      {"moe.num_experts", [](Config& c) -> int64_t& { return c.moe.num_experts; }, experts},
      {"model.vocab_size", [](Config& c) -> int64_t& { return c.model.vocab_size; }, always},
  };
  const int64_t dp = schedule::layout_of(config, ranks).dp(), ranks_of_stage = ranks / config.parallel.pp;
  CostVariants out;
  for (const Size& size : sizes) {
    if (!size.has(config)) continue;
    for (const bool doubled : {false, true}) {
      Config c = config;
      int64_t& number = size.of(c);
      const int64_t before = number;
      const std::string from = fmt::format("{} {}", size.name, before);
      if (!doubled && before < 2) {
        out.skipped.push_back(from + " cannot be halved");
        continue;
      }
      // Half of an odd number is the smaller one: only its size counts.
      number = doubled ? 2 * before : before / 2;
      if (&number == &c.model.num_heads) {
        // As many query heads for a key head as before.
        const int64_t kv = config.model.num_kv_heads;
        c.model.num_kv_heads = doubled ? 2 * kv : std::max<int64_t>(kv / 2, 1);
      }
      // Widths of heads that follow from others.
      if (latent(c)) {
        c.model.head_dim = c.model.qk_nope_head_dim + c.model.qk_rope_head_dim;
        c.model.rotary_dim = c.model.qk_rope_head_dim;
      } else if (config.model.rotary_dim == config.model.head_dim || c.model.rotary_dim > c.model.head_dim) {
        c.model.rotary_dim = c.model.head_dim;
      }
      if (!c.asked.contains("train.loss_chunk")) c.train.loss_chunk = 0;  // follows the sizes
      const std::string name = fmt::format("{} -> {}", from, number);
      try {
        make_short(c, dp);
        out.fitting.push_back({name, judged(std::move(c), ranks_of_stage), ranks_of_stage});
      } catch (const base::Error& e) {
        if (e.code() != base::ExitCode::BadInput) throw;
        out.skipped.push_back(fmt::format("{}: {}", name, e.what()));
      }
    }
  }
  return out;
}

}  // namespace pleat::bench
