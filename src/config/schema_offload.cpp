// Keys of [offload].
#include "config/schema.h"

namespace pleat::config {

namespace {

Condition has_offload() {
  return {"offload.modules is not empty", {"offload.modules"}, [](const Config& c) {
            return !c.offload.modules.empty();
          }};
}

}  // namespace

std::vector<Key> offload_keys() {
  using O = OffloadConfig;
  const auto key = [](const char* name, auto O::*field, std::string meaning) {
    return make_key(std::string("offload.") + name, &Config::offload, field, std::move(meaning));
  };
  std::vector<Key> keys;
  keys.push_back(
      key("modules", &O::modules,
          "Parts of a layer whose saved values, those their backward pass reads, wait for it in the host's "
          "memory. Each value is copied once, whichever parts save it. Results do not change by a bit. "
          "attn_norm: the input of the layer; qkv: the input of the projections, and what lies between them "
          "and attention; core_attention: queries, keys and values, and the output; attn_out: its input; "
          "mlp_norm: its input; expert_up: rows of tokens in the order of experts; activation: its input; "
          "layer: everything. A part is kept, recomputed or offloaded; after recompute \"layer\", "
          "\"attn_norm\" moves what the layer is computed from.")
          .one_of({"attn_norm", "qkv", "core_attention", "attn_out", "mlp_norm", "expert_up", "activation",
                   "layer"})
          .see({"offload.layers", "offload.fraction", "offload.keep_last", "recompute.modules"}));
  keys.push_back(
      key("layers", &O::layers, "Layers it applies to: \"all\", or numbers and ranges such as \"0-3,7\".")
          .when(has_offload())
          .see({"offload.modules", "model.num_layers"}));
  keys.push_back(
      key("fraction", &O::fraction,
          "Share of what is chosen that goes, counted in parts of layers in the order of the forward pass "
          "and rounded up: of parts that are equal, 0.5 moves the first half of the layers.")
          .above(0, 1)
          .when(has_offload())
          .see({"offload.modules", "offload.layers"}));
  keys.push_back(
      key("keep_last", &O::keep_last,
          "So many of the last layers stay where the backward pass follows the forward pass at once: what "
          "they save is needed again before a copy would be back. On a pipeline stage that computes other "
          "microbatches in between, nothing stays.")
          .range(0, 4096)
          .when(has_offload())
          .see({"offload.layers"}));
  keys.push_back(
      key("ahead", &O::ahead,
          "In halves of a layer, attention and MLP: how far ahead of its backward pass a value is fetched, "
          "and how far behind its forward pass the copy to the host may end before the next half waits for "
          "it. More hides slower copies, and takes device memory for so many halves more.")
          .range(1, 8192)
          .when(has_offload())
          .see({"offload.modules"}));
  keys.push_back(
      key("min_bytes", &O::min_bytes,
          "Tensors of fewer bytes stay: a copy of little is all latency.")
          .range(0, 1e15)
          .when(has_offload())
          .see({"offload.modules"}));
  return keys;
}

}  // namespace pleat::config
