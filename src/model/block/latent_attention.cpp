// Multi-head latent attention: queries from an optionally compressed vector, keys and values from one narrow
// vector per token, a rotated part of the key shared by all heads; then ordinary attention over the packed
// result.
#include <cmath>

#include "model/block/attention_attrs.h"
#include "model/block/attention_parts.h"
#include "model/decoder.h"

namespace pleat::model {

using program::AttrSet;
using program::none;
using program::Op;
using program::r;
using program::w;

AttrSet latent_attrs(const config::ModelConfig& m) {
  return {{"heads", double(m.num_heads)},
          {"nope_dim", double(m.qk_nope_head_dim)},
          {"rope_dim", double(m.qk_rope_head_dim)},
          {"v_dim", double(m.v_head_dim)},
          {"interleaved", double(m.rope_interleaved)}};
}

LatentInput latent_attention_input(Decoder& d, int mb, int layer, ValueId x) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, H = m.num_heads, rq = m.q_lora_rank;
  const AttrSet eps = {{"eps", m.norm_eps}}, latent_eps = {{"eps", m.latent_norm_eps}};

  s.x = x;
  s.attn_rstd = d.activation("attn_rstd", {T});
  s.attn_normed = d.activation("attn_normed", {T, h});
  d.b.forward(Op::attn_norm, {r(x), r(W.attn_norm), w(s.attn_normed), w(s.attn_rstd)}, eps);
  if (rq > 0) {
    s.q_compressed = d.activation("q_compressed", {T, rq});
    s.q_rstd = d.activation("q_rstd", {T});
    s.q_normed = d.activation("q_normed", {T, rq});
    d.b.forward(Op::q_down, {r(s.attn_normed), r(W.q_down), none(), none(), w(s.q_compressed)});
    d.b.forward(Op::q_norm, {r(s.q_compressed), r(W.q_down_norm), w(s.q_normed), w(s.q_rstd)}, latent_eps);
  }
  const LatentInput out = {d.activation("query", {T, H * m.head_dim}),
                           d.activation("key_rope", {T, m.qk_rope_head_dim})};
  s.kv_compressed = d.activation("kv_compressed", {T, m.kv_lora_rank});
  s.kv_rstd = d.activation("kv_rstd", {T});
  s.kv_normed = d.activation("kv_normed", {T, m.kv_lora_rank});

  d.b.forward(Op::q_up, {r(rq > 0 ? s.q_normed : s.attn_normed), r(W.q_up), none(), none(), w(out.query)});
  d.b.forward(Op::kv_down, {r(s.attn_normed), r(W.kv_down), none(), none(), w(s.kv_compressed)});
  d.b.at({mb, layer, 1});
  d.b.forward(Op::kv_down, {r(s.attn_normed), r(W.kv_down_rope), none(), none(), w(out.key_rope)});
  d.b.at({mb, layer});
  d.b.forward(Op::kv_norm, {r(s.kv_compressed), r(W.kv_norm), w(s.kv_normed), w(s.kv_rstd)}, latent_eps);
  return out;
}

ValueId latent_attention_forward(Decoder& d, int mb, int layer, ValueId x) {
  const auto [query, key_rope] = latent_attention_input(d, mb, layer, x);
  const auto& m = d.config.model;
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, H = m.num_heads;
  const ValueId key_value = d.activation("key_value", {T, H * (m.qk_nope_head_dim + m.v_head_dim)});
  s.rotated = d.activation("qkv_rotated", {T, H * (2 * m.head_dim + m.v_head_dim)});
  s.attended = d.activation("attended", {T, H * m.v_head_dim});
  s.lse = d.activation("attention_lse", {T, H});

  d.b.forward(Op::kv_up, {r(s.kv_normed), r(W.kv_up), none(), none(), w(key_value)});
  d.b.forward(Op::mla_pack, {r(query), r(key_value), r(key_rope), r(d.cos_sin[size_t(mb)]), w(s.rotated)},
              latent_attrs(m));
  d.b.forward(Op::attention,
              {r(s.rotated), r(d.inputs[size_t(mb)].doc_start), none(), w(s.attended), w(s.lse)},
              attention_attrs(m, layer));
  return attention_output(d, mb, layer);
}

ValueId latent_attention_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, H = m.num_heads, rq = m.q_lora_rank;
  const AttrSet eps = {{"eps", m.norm_eps}}, latent_eps = {{"eps", m.latent_norm_eps}};
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };

  const ValueId d_attended = d.activation("d_attended", {T, H * m.v_head_dim});
  const ValueId d_rotated = d.activation("d_qkv_rotated", {T, H * (2 * m.head_dim + m.v_head_dim)});
  const ValueId d_query = d.activation("d_query", {T, H * m.head_dim});
  const ValueId d_key_value = d.activation("d_key_value", {T, H * (m.qk_nope_head_dim + m.v_head_dim)});
  const ValueId d_key_rope = d.activation("d_key_rope", {T, m.qk_rope_head_dim});
  const ValueId d_kv_normed = d.activation("d_kv_normed", {T, m.kv_lora_rank});
  const ValueId d_kv_compressed = d.activation("d_kv_compressed", {T, m.kv_lora_rank});
  const ValueId d_normed = d.activation("d_attn_normed", {T, h});
  const ValueId dx = d.activation("dx", {T, h});

  d.b.dgrad(Op::attn_out, {r(dy), r(W.attn_out), w(d_attended)});
  d.b.wgrad(Op::attn_out, {r(dy), r(s.attended), acc(G.attn_out), acc(G.attn_out_bias)});
  d.b.dgrad(
      Op::attention,
      {r(d_attended), r(s.rotated), r(s.attended), r(s.lse), r(d.inputs[size_t(mb)].doc_start), w(d_rotated)},
      attention_attrs(m, layer));
  d.b.dgrad(Op::mla_pack, {r(d_rotated), r(d.cos_sin[size_t(mb)]), w(d_query), w(d_key_value), w(d_key_rope)},
            latent_attrs(m));
  d.b.dgrad(Op::kv_up, {r(d_key_value), r(W.kv_up), w(d_kv_normed)});
  d.b.wgrad(Op::kv_up, {r(d_key_value), r(s.kv_normed), acc(G.kv_up), none()});
  d.b.dgrad(Op::kv_norm,
            {r(d_kv_normed), r(s.kv_compressed), r(W.kv_norm), r(s.kv_rstd), none(), w(d_kv_compressed)},
            latent_eps);
  d.b.wgrad(Op::kv_norm, {r(d_kv_normed), r(s.kv_compressed), r(s.kv_rstd), acc(G.kv_norm)});
  d.b.dgrad(Op::kv_down, {r(d_kv_compressed), r(W.kv_down), acc(d_normed)});
  d.b.wgrad(Op::kv_down, {r(d_kv_compressed), r(s.attn_normed), acc(G.kv_down), none()});
  d.b.at({mb, layer, 1});
  d.b.dgrad(Op::kv_down, {r(d_key_rope), r(W.kv_down_rope), acc(d_normed)});
  d.b.wgrad(Op::kv_down, {r(d_key_rope), r(s.attn_normed), acc(G.kv_down_rope), none()});
  d.b.at({mb, layer});
  d.b.wgrad(Op::q_up, {r(d_query), r(rq > 0 ? s.q_normed : s.attn_normed), acc(G.q_up), none()});
  if (rq > 0) {
    const ValueId d_q_normed = d.activation("d_q_normed", {T, rq});
    const ValueId d_q_compressed = d.activation("d_q_compressed", {T, rq});
    d.b.dgrad(Op::q_up, {r(d_query), r(W.q_up), w(d_q_normed)});
    d.b.dgrad(Op::q_norm,
              {r(d_q_normed), r(s.q_compressed), r(W.q_down_norm), r(s.q_rstd), none(), w(d_q_compressed)},
              latent_eps);
    d.b.wgrad(Op::q_norm, {r(d_q_normed), r(s.q_compressed), r(s.q_rstd), acc(G.q_down_norm)});
    d.b.dgrad(Op::q_down, {r(d_q_compressed), r(W.q_down), acc(d_normed)});
    d.b.wgrad(Op::q_down, {r(d_q_compressed), r(s.attn_normed), acc(G.q_down), none()});
  } else {
    d.b.dgrad(Op::q_up, {r(d_query), r(W.q_up), acc(d_normed)});
  }
  d.b.dgrad(Op::attn_norm, {r(d_normed), r(s.x), r(W.attn_norm), r(s.attn_rstd), r(dy), w(dx)}, eps);
  d.b.wgrad(Op::attn_norm, {r(d_normed), r(s.x), r(s.attn_rstd), acc(G.attn_norm)});
  return dx;
}

}  // namespace pleat::model
