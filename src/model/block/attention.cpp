// Attention: norm, packed q|k|v, optional QK norm and rotation, causal grouped-query attention, output
// projection added to the residual stream. Tensor ranks hold some of the heads and work on all rows of their
// group; norm and residual stay on the rows each rank owns.
#include "model/block/attention_parts.h"
#include "model/block/core_attention.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

AttrSet rope_attrs(const config::ModelConfig& m, int64_t tp) {
  return {{"heads", double(m.num_heads / tp)},
          {"kv_heads", double(m.num_kv_heads / tp)},
          {"head_dim", double(m.head_dim)},
          {"rotary_dim", double(m.rotary_dim)},
          {"interleaved", double(m.rope_interleaved)},
          {"full_norm", double(m.qk_norm && m.qk_norm_full)},
          {"eps", m.norm_eps}};
}

}  // namespace

void attention_input(Decoder& d, int mb, int layer, ValueId x) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, rows = d.attention_tokens, h = m.hidden_size;
  const int64_t heads = (m.num_heads + m.num_kv_heads) / d.mesh.tp;
  const int64_t packed = (m.num_heads + 2 * m.num_kv_heads) / d.mesh.tp * m.head_dim;

  s.x = x;
  s.attn_rstd = d.statistic("attn_rstd", {T});
  s.attn_normed = d.activation("attn_normed", {T, h});
  s.qkv = d.activation("qkv", {rows, packed});
  s.rotated = d.activation("qkv_rotated", {rows, packed});
  if (m.qk_norm) s.qk_rstd = d.statistic("qk_rstd", {rows, m.qk_norm_full ? 2 : heads});

  d.b.forward(Op::attn_norm, {r(x), r(W.attn_norm), w(s.attn_normed), w(s.attn_rstd)}, {{"eps", m.norm_eps}});
  const ValueId all =
      gather_rows(d, Op::attn_gather, Phase::Forward, Group::Tensor, s.attn_normed, "attn_all");
  d.b.forward(Op::qkv, {r(all), r(W.qkv), r(W.qkv_bias), none(), w(s.qkv)});
  d.b.forward(Op::qk_rope,
              {r(s.qkv), r(d.cos_sin[size_t(mb)]), r(W.q_norm), r(W.k_norm), w(s.rotated), w(s.qk_rstd)},
              rope_attrs(m, d.mesh.tp));
}

ValueId attention_output(Decoder& d, int mb, int layer) {
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  s.x_mid = project_rows(d, kAttentionOut, s.attended, W.attn_out, W.attn_out_bias, s.x, "x_mid");
  return s.x_mid;
}

ValueId attention_forward(Decoder& d, int mb, int layer, ValueId x) {
  attention_input(d, mb, layer, x);
  core_attention_forward(d, mb, layer, d.weights[size_t(layer)].sinks);
  return attention_output(d, mb, layer);
}

ValueId attention_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, rows = d.attention_tokens, h = m.hidden_size;
  const int64_t packed = (m.num_heads + 2 * m.num_kv_heads) / d.mesh.tp * m.head_dim;
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };
  const ValueId rope_qkv =
      m.qk_norm ? s.qkv : kNoValue;  // without the norm, only the rotation has to be undone

  const ValueId d_attended = d.activation("d_attended", {rows, m.num_heads / d.mesh.tp * m.head_dim});
  const ValueId d_rotated = d.activation("d_qkv_rotated", {rows, packed});
  const ValueId d_qkv = d.activation("d_qkv", {rows, packed});
  const ValueId d_all = d.activation("d_attn_normed", {rows, h});
  const ValueId dx = d.activation("dx", {T, h});

  project_rows_backward(d, kAttentionOut, Op::attn_gather, dy, s.attended, W.attn_out, G.attn_out,
                        G.attn_out_bias, d_attended, "d_attn_out");
  core_attention_backward(d, mb, layer, d_attended, d_rotated, W.sinks, G.sinks);
  d.b.dgrad(
      Op::qk_rope,
      {r(d_rotated), r(d.cos_sin[size_t(mb)]), r(rope_qkv), r(W.q_norm), r(W.k_norm), r(s.qk_rstd), w(d_qkv)},
      rope_attrs(m, d.mesh.tp));
  if (m.qk_norm)
    d.b.wgrad(Op::qk_rope,
              {r(d_rotated), r(d.cos_sin[size_t(mb)]), r(s.qkv), r(s.qk_rstd), acc(G.q_norm), acc(G.k_norm)},
              rope_attrs(m, d.mesh.tp));
  d.b.dgrad(Op::qkv, {r(d_qkv), r(W.qkv), w(d_all)});
  const ValueId d_normed =
      scatter_rows(d, Op::attn_scatter, Phase::BackwardInput, Group::Tensor, d_all, "d_attn_own");
  const ValueId all =
      gather_rows(d, Op::attn_gather, Phase::BackwardInput, Group::Tensor, s.attn_normed, "attn_again", 1);
  d.b.wgrad(Op::qkv, {r(d_qkv), r(all), acc(G.qkv), acc(G.qkv_bias)});
  d.b.dgrad(Op::attn_norm, {r(d_normed), r(s.x), r(W.attn_norm), r(s.attn_rstd), r(dy), w(dx)},
            {{"eps", m.norm_eps}});
  d.b.wgrad(Op::attn_norm, {r(d_normed), r(s.x), r(s.attn_rstd), acc(G.attn_norm)});
  return dx;
}

}  // namespace pleat::model
