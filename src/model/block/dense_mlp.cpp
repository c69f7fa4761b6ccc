// Dense SwiGLU: norm, gate|up, silu(gate) * up, down projection added to the residual stream. Tensor ranks
// hold some of the columns in between and work on all rows of their group.
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {
constexpr RowParallel kDown = {Op::mlp_down, Op::mlp_scatter, Op::mlp_add};
}

ValueId dense_mlp_forward(Decoder& d, int mb, int layer, ValueId x) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, rows = d.attention_tokens, h = m.hidden_size,
                f = m.ffn_hidden_size / d.mesh.tp;

  s.mlp_rstd = d.statistic("mlp_rstd", {T});
  s.mlp_normed = d.activation("mlp_normed", {T, h});
  s.gate_up = d.activation("gate_up", {rows, 2 * f});
  s.activated = d.activation("activated", {rows, f});

  d.b.forward(Op::mlp_norm, {r(x), r(W.mlp_norm), w(s.mlp_normed), w(s.mlp_rstd)}, {{"eps", m.norm_eps}});
  const ValueId all = gather_rows(d, Op::mlp_gather, Phase::Forward, Group::Tensor, s.mlp_normed, "mlp_all");
  d.b.forward(Op::mlp_up, {r(all), r(W.mlp_up), r(W.mlp_up_bias), none(), w(s.gate_up)});
  d.b.forward(Op::mlp_act, {r(s.gate_up), w(s.activated)}, {{"activation", 0}});
  return project_rows(d, kDown, s.activated, W.mlp_down, W.mlp_down_bias, x, "x_out");
}

ValueId dense_mlp_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t T = d.num_tokens, rows = d.attention_tokens, h = m.hidden_size,
                f = m.ffn_hidden_size / d.mesh.tp;
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };

  const ValueId d_activated = d.activation("d_activated", {rows, f});
  const ValueId d_gate_up = d.activation("d_gate_up", {rows, 2 * f});
  const ValueId d_all = d.activation("d_mlp_normed", {rows, h});
  const ValueId dx = d.activation("dx_mid", {T, h});

  project_rows_backward(d, kDown, Op::mlp_gather, dy, s.activated, W.mlp_down, G.mlp_down, G.mlp_down_bias,
                        d_activated, "d_mlp_down");
  d.b.dgrad(Op::mlp_act, {r(d_activated), r(s.gate_up), w(d_gate_up)}, {{"activation", 0}});
  d.b.dgrad(Op::mlp_up, {r(d_gate_up), r(W.mlp_up), w(d_all)});
  const ValueId d_normed =
      scatter_rows(d, Op::mlp_scatter, Phase::BackwardInput, Group::Tensor, d_all, "d_mlp_own");
  const ValueId all =
      gather_rows(d, Op::mlp_gather, Phase::BackwardInput, Group::Tensor, s.mlp_normed, "mlp_again", 1);
  d.b.wgrad(Op::mlp_up, {r(d_gate_up), r(all), acc(G.mlp_up), acc(G.mlp_up_bias)});
  d.b.dgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(W.mlp_norm), r(s.mlp_rstd), r(dy), w(dx)},
            {{"eps", m.norm_eps}});
  d.b.wgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(s.mlp_rstd), acc(G.mlp_norm)});
  return dx;
}

}  // namespace pleat::model
