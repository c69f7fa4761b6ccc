// Mixture of experts: norm, shared experts, router, rows to experts, two matrices per expert, rows back to
// tokens and into the residual stream.
#include "model/block/moe.h"
#include "model/block/moe_attrs.h"
#include "model/words.h"

namespace pleat::model {

ValueId routed_forward(Decoder& d, int mb, int layer, ValueId residual, ValueId shared) {
  d.b.at({mb, layer});
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t h = d.config.model.hidden_size, f = d.config.moe.ffn_hidden_size / d.mesh.etp,
                R = d.expert_rows;
  const bool bias = d.config.moe.expert_bias;

  route(d, mb, layer);
  dispatch_forward(d, mb, layer);

  s.gate_up = d.routed("expert_gate_up", d.compute, {R, 2 * f}, Owner::Activations, d.most_expert_rows);
  s.activated = d.routed("expert_activated", d.compute, {R, f}, Owner::Activations, d.most_expert_rows);
  const ValueId out_rows = d.routed("expert_out", d.compute, {R, h}, Owner::Activations, d.most_expert_rows);
  d.b.forward(Op::expert_up,
              {r(s.rows), r(W.expert_up), r(s.expert_offsets), r(W.expert_up_bias), none(), w(s.gate_up)});
  d.b.forward(Op::expert_act, {r(s.gate_up), r(s.row_probs), r(s.expert_offsets), w(s.activated)},
              activation_attrs(d.config));
  // The probability is in the activation already; a bias after the second matrix still has to be weighted.
  d.b.forward(Op::expert_down, {r(s.activated), r(W.expert_down), r(s.expert_offsets), r(W.expert_down_bias),
                                bias ? r(s.row_probs) : none(), w(out_rows)});
  return combine_forward(d, mb, layer, out_rows, residual, shared);
}

DispatchGradients experts_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const int64_t h = d.config.model.hidden_size, f = d.config.moe.ffn_hidden_size / d.mesh.etp,
                R = d.expert_rows;
  const bool bias = d.config.moe.expert_bias;
  const auto acc = [&](ValueId v) { return v == kNoValue ? none() : d.b.acc(v); };

  const ValueId d_activated =
      d.routed("d_expert_activated", d.compute, {R, f}, Owner::Activations, d.most_expert_rows);
  const ValueId d_gate_up =
      d.routed("d_expert_gate_up", d.compute, {R, 2 * f}, Owner::Activations, d.most_expert_rows);
  const ValueId d_row_probs = d.routed("d_row_probs", d.router, {R}, Owner::Routing, d.most_expert_rows);
  const ValueId d_rows = d.routed("d_expert_rows", d.compute, {R, h}, Owner::Activations, d.most_expert_rows);

  const ValueId d_out_rows = combine_backward(d, mb, layer, dy);
  d.b.dgrad(Op::expert_down, {r(d_out_rows), r(W.expert_down), r(s.expert_offsets), r(W.expert_down_bias),
                              w(d_activated), bias ? w(d_row_probs) : none()});
  d.b.wgrad(Op::expert_down,
            {r(d_out_rows), r(s.activated), r(s.expert_offsets), bias ? r(s.row_probs) : none(),
             d.b.acc(G.expert_down), acc(G.expert_down_bias)});
  d.b.dgrad(
      Op::expert_act,
      {r(d_activated), r(s.gate_up), r(s.row_probs), r(s.expert_offsets), w(d_gate_up), d.b.acc(d_row_probs)},
      activation_attrs(d.config));
  d.b.dgrad(Op::expert_up, {r(d_gate_up), r(W.expert_up), r(s.expert_offsets), none(), w(d_rows), none()});
  d.b.wgrad(Op::expert_up, {r(d_gate_up), r(s.rows), r(s.expert_offsets), none(), d.b.acc(G.expert_up),
                            acc(G.expert_up_bias)});
  return dispatch_backward(d, mb, layer, d_rows, d_row_probs);
}

ValueId moe_forward(Decoder& d, int mb, int layer, ValueId x) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  s.mlp_rstd = d.statistic("mlp_rstd", {d.num_tokens});
  s.mlp_normed = d.activation("mlp_normed", {d.num_tokens, m.hidden_size});
  d.b.forward(Op::mlp_norm, {r(x), r(d.weights[size_t(layer)].mlp_norm), w(s.mlp_normed), w(s.mlp_rstd)},
              {{"eps", m.norm_eps}});
  const ValueId shared = shared_forward(d, mb, layer);
  return routed_forward(d, mb, layer, x, shared);
}

ValueId moe_backward(Decoder& d, int mb, int layer, ValueId dy) {
  d.b.at({mb, layer});
  const auto& m = d.config.model;
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  const ValueId dx = d.activation("dx_mid", {d.num_tokens, m.hidden_size});
  const auto [d_normed, d_probs] = experts_backward(d, mb, layer, dy);
  shared_backward(d, mb, layer, dy, d_normed);
  d.b.at({mb, layer});
  route_backward(d, mb, layer, d_probs, d_normed);
  d.b.dgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(W.mlp_norm), r(s.mlp_rstd), r(dy), w(dx)},
            {{"eps", m.norm_eps}});
  d.b.wgrad(Op::mlp_norm, {r(d_normed), r(s.x_mid), r(s.mlp_rstd), d.b.acc(G.mlp_norm)});
  return dx;
}

}  // namespace pleat::model
