// What the counts of a model depend on: its layers by kind, as plain numbers. A trainable config fills it,
// and so can a test or a tool for a model the trainer does not have (linear attention, say).
#pragma once

#include <cstdint>

#include "config/config.h"

namespace pleat::cost {

// What mixes the tokens of a layer.
enum class Mixer : uint8_t { Attention, Latent, Delta };

struct Architecture {
  double hidden = 0, vocab = 0;
  // Layers by what mixes tokens and by what follows; both columns add up to the layers of the decoder.
  double attention_layers = 0, latent_layers = 0, delta_layers = 0;
  double dense_layers = 0, moe_layers = 0;
  // Layers of multi-token prediction and what each of them is.
  double mtp_layers = 0;
  Mixer mtp_mixer = Mixer::Attention;
  bool mtp_is_moe = false;

  double heads = 0, kv_heads = 0, head_dim = 0;
  bool output_gate = false;  // a second projection as wide as the query
  // Latent attention (heads as above); q_rank 0: the query is not compressed.
  double q_rank = 0, kv_rank = 0, nope_dim = 0, rope_dim = 0, v_dim = 0;
  // Gated delta net: widths of one key and value head, taps of the convolution.
  double delta_key_heads = 0, delta_key_dim = 0, delta_value_heads = 0, delta_value_dim = 0, delta_taps = 0;

  double ffn = 0;  // dense SwiGLU
  double expert_ffn = 0, top_k = 0, shared_ffn = 0;
};

// `config` must be resolved. Sliding windows are not part of it: model FLOPs ignore them, as Megatron does.
Architecture architecture_of(const config::Config& config);

// Floating-point operations of one training step over `tokens` tokens in sequences of `seq_len`: two per
// multiply-add, forward and both backwards, so six per weight and token. Multi-token prediction is counted
// apart: its layers, joining projections with their norms, and heads.
struct ModelFlops {
  double attention_projections = 0, attention_core = 0, dense = 0, routed = 0, shared = 0, head = 0, mtp = 0;
  double total() const {
    return attention_projections + attention_core + dense + routed + shared + head + mtp;
  }
};
ModelFlops model_flops(const Architecture& architecture, double tokens, double seq_len);

}  // namespace pleat::cost
