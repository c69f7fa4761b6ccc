#include "cost/architecture.h"

namespace pleat::cost {
namespace {

// Multiply-adds per token.
struct MixerWork {
  double projections = 0, core = 0;
};

MixerWork attention(const Architecture& a, double seq_len) {
  const double q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
  // Scores and values, half of the square each.
  return {a.hidden * (q * (a.output_gate ? 2 : 1) + 2 * kv) + q * a.hidden, seq_len * q};
}

MixerWork latent(const Architecture& a, double seq_len) {
  const double qk = a.nope_dim + a.rope_dim;
  // The "+ 1" per compressed element is its norm, as Megatron counts it.
  const double query = a.q_rank > 0 ? a.q_rank * (a.hidden + a.heads * qk + 1) : a.hidden * a.heads * qk;
  return {query + a.kv_rank * (a.hidden + a.heads * (a.nope_dim + a.v_dim) + 1) + a.hidden * a.rope_dim +
              a.heads * a.v_dim * a.hidden,
          seq_len * a.heads * (qk + a.v_dim) / 2};
}

MixerWork delta(const Architecture& a) {
  const double qk = a.delta_key_heads * a.delta_key_dim, v = a.delta_value_heads * a.delta_value_dim;
  return {a.hidden * (2 * qk + 2 * v + 2 * a.delta_value_heads) + a.delta_taps * (2 * qk + v) + a.hidden * v,
          4 * a.delta_value_heads * a.delta_value_dim * a.delta_value_dim};
}

}  // namespace

Architecture architecture_of(const config::Config& config) {
  const auto& m = config.model;
  const auto& e = config.moe;
  Architecture a;
  a.hidden = double(m.hidden_size), a.vocab = double(m.vocab_size);
  (m.attention == "mla" ? a.latent_layers : a.attention_layers) = double(m.num_layers);
  a.moe_layers = double(config::num_moe_layers(config));
  a.dense_layers = double(m.num_layers) - a.moe_layers;
  a.mtp_layers = double(m.num_mtp_layers);
  a.mtp_mixer = m.attention == "mla" ? Mixer::Latent : Mixer::Attention;
  a.mtp_is_moe = config::is_moe_layer(config, m.num_layers - 1);
  a.heads = double(m.num_heads), a.kv_heads = double(m.num_kv_heads), a.head_dim = double(m.head_dim);
  a.q_rank = double(m.q_lora_rank), a.kv_rank = double(m.kv_lora_rank);
  a.nope_dim = double(m.qk_nope_head_dim), a.rope_dim = double(m.qk_rope_head_dim);
  a.v_dim = double(m.v_head_dim);
  a.ffn = double(m.ffn_hidden_size);
  a.expert_ffn = double(e.ffn_hidden_size), a.top_k = double(e.top_k);
  a.shared_ffn = double(e.shared_ffn_hidden_size);
  return a;
}

ModelFlops model_flops(const Architecture& a, double tokens, double seq_len) {
  constexpr double kGated = 3;  // matrices of a SwiGLU
  const double six = 6 * tokens, h = a.hidden;
  const MixerWork gqa = attention(a, seq_len), mla = latent(a, seq_len), linear = delta(a);
  ModelFlops out;
  out.attention_projections = six * (a.attention_layers * gqa.projections +
                                     a.latent_layers * mla.projections + a.delta_layers * linear.projections);
  out.attention_core =
      six * (a.attention_layers * gqa.core + a.latent_layers * mla.core + a.delta_layers * linear.core);
  const double dense = kGated * h * a.ffn, routed = kGated * h * a.expert_ffn * a.top_k,
               shared = kGated * h * a.shared_ffn, head = h * a.vocab;
  out.dense = six * a.dense_layers * dense;
  out.routed = six * a.moe_layers * routed;
  out.shared = six * a.moe_layers * shared;
  out.head = six * head;
  if (a.mtp_layers > 0) {
    const MixerWork& mixer = a.mtp_mixer == Mixer::Latent ? mla : a.mtp_mixer == Mixer::Delta ? linear : gqa;
    const double join = 2 * h * h + 3 * h;
    out.mtp = six * a.mtp_layers *
              (mixer.projections + mixer.core + (a.mtp_is_moe ? routed + shared : dense) + join + head);
  }
  return out;
}

}  // namespace pleat::cost
