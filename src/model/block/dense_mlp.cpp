// Dense SwiGLU: norm, gate|up, silu(gate) * up, down projection added to the residual stream.
#include "model/decoder.h"

namespace pleat::model {

using program::none;
using program::Op;
using program::r;
using program::w;

ValueId dense_mlp_forward(Decoder& d, int mb, int layer, ValueId x) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, f = m.ffn_hidden_size;

  s.mlp_rstd = d.activation("mlp_rstd", {T});
  s.mlp_normed = d.activation("mlp_normed", {T, h});
  s.gate_up = d.activation("gate_up", {T, 2 * f});
  s.activated = d.activation("activated", {T, f});
  const ValueId y = d.activation("x_out", {T, h});

  d.b.forward(Op::mlp_norm, {r(x), r(W.mlp_norm), w(s.mlp_normed), w(s.mlp_rstd)}, {{"eps", m.norm_eps}});
  d.b.forward(Op::mlp_up, {r(s.mlp_normed), r(W.mlp_up), r(W.mlp_up_bias), none(), w(s.gate_up)});
  d.b.forward(Op::mlp_act, {r(s.gate_up), w(s.activated)}, {{"activation", 0}});
  d.b.forward(Op::mlp_down, {r(s.activated), r(W.mlp_down), r(W.mlp_down_bias), r(x), w(y)});
  return y;
}

ValueId dense_mlp_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, h = m.hidden_size, f = m.ffn_hidden_size;
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };

  const ValueId d_activated = d.activation("d_activated", {T, f});
  const ValueId d_gate_up = d.activation("d_gate_up", {T, 2 * f});
  const ValueId d_normed = d.activation("d_mlp_normed", {T, h});
  const ValueId dx = d.activation("dx_mid", {T, h});

  d.b.dgrad(Op::mlp_down, {r(dy), r(W.mlp_down), w(d_activated)});
  d.b.wgrad(Op::mlp_down, {r(dy), r(s.activated), acc(G.mlp_down), acc(G.mlp_down_bias)});
  d.b.dgrad(Op::mlp_act, {r(d_activated), r(s.gate_up), w(d_gate_up)}, {{"activation", 0}});
  d.b.dgrad(Op::mlp_up, {r(d_gate_up), r(W.mlp_up), w(d_normed)});
  d.b.wgrad(Op::mlp_up, {r(d_gate_up), r(s.mlp_normed), acc(G.mlp_up), acc(G.mlp_up_bias)});
  d.b.dgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(W.mlp_norm), r(s.mlp_rstd), r(dy), w(dx)},
            {{"eps", m.norm_eps}});
  d.b.wgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(s.mlp_rstd), acc(G.mlp_norm)});
  return dx;
}

}  // namespace pleat::model
