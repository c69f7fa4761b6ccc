// Multi-head latent attention: queries from an optionally compressed vector, keys and values from one narrow
// vector per token, a rotated part of the key shared by all heads; then ordinary attention over the packed
// result. The narrow vectors are made on the rows each rank owns and gathered over the tensor ranks, which
// hold some of the heads each.
#include "model/block/attention_parts.h"
#include "model/block/core_attention.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

// What the stages that gather and scatter carry, as part.
enum Part { kQuery = 0, kKeyValue = 1, kKeyRope = 2, kAgain = 3 };

ValueId gathered(Decoder& d, Phase phase, ValueId x, const char* what, int part) {
  return gather_rows(d, Op::attn_gather, phase, Group::Tensor, x, what, part);
}

ValueId scattered(Decoder& d, ValueId x, const char* what, int part) {
  return scatter_rows(d, Op::attn_scatter, Phase::BackwardInput, Group::Tensor, x, what, part);
}

}  // namespace

AttrSet latent_attrs(const config::ModelConfig& m, int64_t tp) {
  return {{"heads", double(m.num_heads / tp)},
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
  const int64_t T = d.num_tokens, rows = d.attention_tokens, h = m.hidden_size, rq = m.q_lora_rank;
  const AttrSet eps = {{"eps", m.norm_eps}}, latent_eps = {{"eps", m.latent_norm_eps}};

  s.x = x;
  s.attn_rstd = d.statistic("attn_rstd", {T});
  s.attn_normed = d.activation("attn_normed", {T, h});
  d.b.forward(Op::attn_norm, {r(x), r(W.attn_norm), w(s.attn_normed), w(s.attn_rstd)}, eps);
  if (rq > 0) {
    s.q_compressed = d.activation("q_compressed", {T, rq});
    s.q_rstd = d.statistic("q_rstd", {T});
    s.q_normed = d.activation("q_normed", {T, rq});
    d.b.forward(Op::q_down, {r(s.attn_normed), r(W.q_down), none(), none(), w(s.q_compressed)});
    d.b.forward(Op::q_norm, {r(s.q_compressed), r(W.q_down_norm), w(s.q_normed), w(s.q_rstd)}, latent_eps);
  }
  const LatentInput out = {d.activation("query", {rows, m.num_heads / d.mesh.tp * m.head_dim}),
                           d.activation("key_rope", {T, m.qk_rope_head_dim})};
  s.kv_compressed = d.activation("kv_compressed", {T, m.kv_lora_rank});
  s.kv_rstd = d.statistic("kv_rstd", {T});
  s.kv_normed = d.activation("kv_normed", {T, m.kv_lora_rank});

  const ValueId q_in = gathered(d, Phase::Forward, rq > 0 ? s.q_normed : s.attn_normed, "q_all", kQuery);
  d.b.forward(Op::q_up, {r(q_in), r(W.q_up), none(), none(), w(out.query)});
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
  const int64_t rows = d.attention_tokens, H = m.num_heads / d.mesh.tp;
  const ValueId key_value = d.activation("key_value", {rows, H * (m.qk_nope_head_dim + m.v_head_dim)});
  s.rotated = d.activation("qkv_rotated", {rows, H * (2 * m.head_dim + m.v_head_dim)});

  const ValueId kv_in = gathered(d, Phase::Forward, s.kv_normed, "kv_all", kKeyValue);
  d.b.forward(Op::kv_up, {r(kv_in), r(W.kv_up), none(), none(), w(key_value)});
  const ValueId rope_in = gathered(d, Phase::Forward, key_rope, "key_rope_all", kKeyRope);
  d.b.forward(Op::mla_pack, {r(query), r(key_value), r(rope_in), r(d.cos_sin[size_t(mb)]), w(s.rotated)},
              latent_attrs(m, d.mesh.tp));
  core_attention_forward(d, mb, layer, kNoValue);
  return attention_output(d, mb, layer);
}

ValueId latent_attention_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, rows = d.attention_tokens, h = m.hidden_size, rq = m.q_lora_rank;
  const int64_t H = m.num_heads / d.mesh.tp;
  const AttrSet eps = {{"eps", m.norm_eps}}, latent_eps = {{"eps", m.latent_norm_eps}};
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };

  const ValueId d_attended = d.activation("d_attended", {rows, H * m.v_head_dim});
  const ValueId d_rotated = d.activation("d_qkv_rotated", {rows, H * (2 * m.head_dim + m.v_head_dim)});
  const ValueId d_query = d.activation("d_query", {rows, H * m.head_dim});
  const ValueId d_key_value = d.activation("d_key_value", {rows, H * (m.qk_nope_head_dim + m.v_head_dim)});
  const ValueId d_rope_all = d.activation("d_key_rope", {rows, m.qk_rope_head_dim});
  const ValueId d_q_in = d.activation("d_q_in", {rows, rq > 0 ? rq : h});
  const ValueId d_kv_in = d.activation("d_kv_normed", {rows, m.kv_lora_rank});
  const ValueId d_kv_compressed = d.activation("d_kv_compressed", {T, m.kv_lora_rank});
  const ValueId dx = d.activation("dx", {T, h});

  project_rows_backward(d, kAttentionOut, Op::attn_gather, dy, s.attended, W.attn_out, G.attn_out,
                        G.attn_out_bias, d_attended, "d_attn_out");
  core_attention_backward(d, mb, layer, d_attended, d_rotated, kNoValue, kNoValue);
  d.b.dgrad(Op::mla_pack, {r(d_rotated), r(d.cos_sin[size_t(mb)]), w(d_query), w(d_key_value), w(d_rope_all)},
            latent_attrs(m, d.mesh.tp));

  // The query side first: where it is not compressed, it is the first to write d_normed.
  const ValueId q_from = rq > 0 ? s.q_normed : s.attn_normed;
  d.b.dgrad(Op::q_up, {r(d_query), r(W.q_up), w(d_q_in)});
  const ValueId q_in = gathered(d, Phase::BackwardInput, q_from, "q_again", kAgain + kQuery);
  d.b.wgrad(Op::q_up, {r(d_query), r(q_in), acc(G.q_up), none()});
  const ValueId d_q_own = scattered(d, d_q_in, "d_q_own", kQuery);
  ValueId d_normed = d_q_own;
  if (rq > 0) {
    const ValueId d_q_compressed = d.activation("d_q_compressed", {T, rq});
    d_normed = d.activation("d_attn_normed", {T, h});
    d.b.dgrad(Op::q_norm,
              {r(d_q_own), r(s.q_compressed), r(W.q_down_norm), r(s.q_rstd), none(), w(d_q_compressed)},
              latent_eps);
    d.b.wgrad(Op::q_norm, {r(d_q_own), r(s.q_compressed), r(s.q_rstd), acc(G.q_down_norm)});
    d.b.dgrad(Op::q_down, {r(d_q_compressed), r(W.q_down), w(d_normed)});
    d.b.wgrad(Op::q_down, {r(d_q_compressed), r(s.attn_normed), acc(G.q_down), none()});
  }

  d.b.dgrad(Op::kv_up, {r(d_key_value), r(W.kv_up), w(d_kv_in)});
  const ValueId kv_in = gathered(d, Phase::BackwardInput, s.kv_normed, "kv_again", kAgain + kKeyValue);
  d.b.wgrad(Op::kv_up, {r(d_key_value), r(kv_in), acc(G.kv_up), none()});
  const ValueId d_kv_normed = scattered(d, d_kv_in, "d_kv_own", kKeyValue);
  d.b.dgrad(Op::kv_norm,
            {r(d_kv_normed), r(s.kv_compressed), r(W.kv_norm), r(s.kv_rstd), none(), w(d_kv_compressed)},
            latent_eps);
  d.b.wgrad(Op::kv_norm, {r(d_kv_normed), r(s.kv_compressed), r(s.kv_rstd), acc(G.kv_norm)});
  d.b.dgrad(Op::kv_down, {r(d_kv_compressed), r(W.kv_down), acc(d_normed)});
  d.b.wgrad(Op::kv_down, {r(d_kv_compressed), r(s.attn_normed), acc(G.kv_down), none()});
  const ValueId d_key_rope = scattered(d, d_rope_all, "d_key_rope_own", kKeyRope);
  d.b.at({mb, layer, 1});
  d.b.dgrad(Op::kv_down, {r(d_key_rope), r(W.kv_down_rope), acc(d_normed)});
  d.b.wgrad(Op::kv_down, {r(d_key_rope), r(s.attn_normed), acc(G.kv_down_rope), none()});
  d.b.at({mb, layer});
  d.b.dgrad(Op::attn_norm, {r(d_normed), r(s.x), r(W.attn_norm), r(s.attn_rstd), r(dy), w(dx)}, eps);
  d.b.wgrad(Op::attn_norm, {r(d_normed), r(s.x), r(s.attn_rstd), acc(G.attn_norm)});
  return dx;
}

}  // namespace pleat::model
