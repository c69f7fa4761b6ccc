// Attention: norm, packed q|k|v, optional QK norm and rotation, causal grouped-query attention, output
// projection added to the residual stream.
#include "model/block/attention_attrs.h"
#include "model/block/attention_parts.h"
#include "model/decoder.h"

namespace pleat::model {

using program::AttrSet;
using program::none;
using program::Op;
using program::r;
using program::w;

namespace {

AttrSet rope_attrs(const config::ModelConfig& m) {
  return {{"heads", double(m.num_heads)},
          {"kv_heads", double(m.num_kv_heads)},
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
  const int64_t T = d.num_tokens, h = m.hidden_size, packed = (m.num_heads + 2 * m.num_kv_heads) * m.head_dim;

  s.x = x;
  s.attn_rstd = d.activation("attn_rstd", {T});
  s.attn_normed = d.activation("attn_normed", {T, h});
  s.qkv = d.activation("qkv", {T, packed});
  s.rotated = d.activation("qkv_rotated", {T, packed});
  if (m.qk_norm) s.qk_rstd = d.activation("qk_rstd", {T, m.qk_norm_full ? 2 : m.num_heads + m.num_kv_heads});

  d.b.forward(Op::attn_norm, {r(x), r(W.attn_norm), w(s.attn_normed), w(s.attn_rstd)}, {{"eps", m.norm_eps}});
  d.b.forward(Op::qkv, {r(s.attn_normed), r(W.qkv), r(W.qkv_bias), none(), w(s.qkv)});
  d.b.forward(Op::qk_rope,
              {r(s.qkv), r(d.cos_sin[size_t(mb)]), r(W.q_norm), r(W.k_norm), w(s.rotated), w(s.qk_rstd)},
              rope_attrs(m));
}

ValueId attention_output(Decoder& d, int mb, int layer) {
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  s.x_mid = d.activation("x_mid", {d.num_tokens, d.config.model.hidden_size});
  d.b.forward(Op::attn_out, {r(s.attended), r(W.attn_out), r(W.attn_out_bias), r(s.x), w(s.x_mid)});
  return s.x_mid;
}

ValueId attention_forward(Decoder& d, int mb, int layer, ValueId x) {
  attention_input(d, mb, layer, x);
  const auto& m = d.config.model;
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  s.attended = d.activation("attended", {d.num_tokens, m.num_heads * m.head_dim});
  s.lse = d.activation("attention_lse", {d.num_tokens, m.num_heads});
  d.b.forward(Op::attention,
              {r(s.rotated), r(d.inputs[size_t(mb)].doc_start), r(d.weights[size_t(layer)].sinks),
               w(s.attended), w(s.lse)},
              attention_attrs(m, layer));
  return attention_output(d, mb, layer);
}

ValueId attention_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, packed = (m.num_heads + 2 * m.num_kv_heads) * m.head_dim;
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };
  const ValueId rope_qkv =
      m.qk_norm ? s.qkv : kNoValue;  // without the norm, only the rotation has to be undone

  const ValueId d_attended = d.activation("d_attended", {T, m.num_heads * m.head_dim});
  const ValueId d_rotated = d.activation("d_qkv_rotated", {T, packed});
  const ValueId d_qkv = d.activation("d_qkv", {T, packed});
  const ValueId d_normed = d.activation("d_attn_normed", {T, h});
  const ValueId dx = d.activation("dx", {T, h});

  d.b.dgrad(Op::attn_out, {r(dy), r(W.attn_out), w(d_attended)});
  d.b.wgrad(Op::attn_out, {r(dy), r(s.attended), acc(G.attn_out), acc(G.attn_out_bias)});
  d.b.dgrad(
      Op::attention,
      {r(d_attended), r(s.rotated), r(s.attended), r(s.lse), r(d.inputs[size_t(mb)].doc_start), w(d_rotated)},
      attention_attrs(m, layer));
  if (m.attention_sinks)
    d.b.wgrad(Op::attention, {r(d_attended), r(s.attended), r(s.lse), r(W.sinks), acc(G.sinks)},
              attention_attrs(m, layer));
  d.b.dgrad(
      Op::qk_rope,
      {r(d_rotated), r(d.cos_sin[size_t(mb)]), r(rope_qkv), r(W.q_norm), r(W.k_norm), r(s.qk_rstd), w(d_qkv)},
      rope_attrs(m));
  if (m.qk_norm)
    d.b.wgrad(Op::qk_rope,
              {r(d_rotated), r(d.cos_sin[size_t(mb)]), r(s.qkv), r(s.qk_rstd), acc(G.q_norm), acc(G.k_norm)},
              rope_attrs(m));
  d.b.dgrad(Op::qkv, {r(d_qkv), r(W.qkv), w(d_normed)});
  d.b.wgrad(Op::qkv, {r(d_qkv), r(s.attn_normed), acc(G.qkv), acc(G.qkv_bias)});
  d.b.dgrad(Op::attn_norm, {r(d_normed), r(s.x), r(W.attn_norm), r(s.attn_rstd), r(dy), w(dx)},
            {{"eps", m.norm_eps}});
  d.b.wgrad(Op::attn_norm, {r(d_normed), r(s.x), r(s.attn_rstd), acc(G.attn_norm)});
  return dx;
}

}  // namespace pleat::model
