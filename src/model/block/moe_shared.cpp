// Experts every token passes through, on a lane of their own so that they can run beside the routed ones. Cut
// over the tensor ranks like a dense MLP.
#include "model/block/moe.h"
#include "model/block/moe_attrs.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {
constexpr RowParallel kSharedDown = {Op::shared_down, Op::shared_scatter, Op::shared_add};
}

ValueId shared_forward(Decoder& d, int mb, int layer) {
  const int64_t f = d.config.moe.shared_ffn_hidden_size / d.mesh.tp, h = d.config.model.hidden_size;
  const int64_t T = d.num_tokens, rows = d.attention_tokens;
  if (d.config.moe.shared_ffn_hidden_size == 0) return kNoValue;
  d.b.at({mb, layer}, d.side_lane);
  const LayerWeights& W = d.weights[size_t(layer)];
  Saved& s = d.saved[size_t(mb)][size_t(layer)];
  s.shared_gate_up = d.activation("shared_gate_up", {rows, 2 * f});
  s.shared_activated = d.activation("shared_activated", {rows, f});
  const ValueId all =
      gather_rows(d, Op::shared_gather, Phase::Forward, Group::Tensor, s.mlp_normed, "shared_all");
  d.b.forward(Op::shared_up, {r(all), r(W.shared_up), none(), none(), w(s.shared_gate_up)});
  d.b.forward(Op::shared_act, {r(s.shared_gate_up), w(s.shared_activated)}, {{"activation", 0}});
  s.shared_out =
      project_rows(d, kSharedDown, s.shared_activated, W.shared_down, kNoValue, kNoValue, "shared_out");
  if (W.shared_gate == kNoValue) return s.shared_out;
  const ValueId gated = d.activation("shared_gated", {T, h});
  d.b.forward(Op::shared_gate, {r(s.mlp_normed), r(W.shared_gate), r(s.shared_out), w(gated)});
  return gated;
}

void shared_backward(Decoder& d, int mb, int layer, ValueId dy, ValueId d_normed) {
  const int64_t f = d.config.moe.shared_ffn_hidden_size / d.mesh.tp, h = d.config.model.hidden_size;
  const int64_t T = d.num_tokens, rows = d.attention_tokens;
  if (d.config.moe.shared_ffn_hidden_size == 0) return;
  d.b.at({mb, layer}, d.side_lane);
  const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
  const Saved& s = d.saved[size_t(mb)][size_t(layer)];
  if (W.shared_gate != kNoValue) {
    const ValueId d_out = d.activation("d_shared_out", {T, h});
    d.b.dgrad(Op::shared_gate,
              {r(dy), r(s.mlp_normed), r(W.shared_gate), r(s.shared_out), d.b.acc(d_normed), w(d_out)});
    d.b.wgrad(Op::shared_gate,
              {r(dy), r(s.mlp_normed), r(W.shared_gate), r(s.shared_out), d.b.acc(G.shared_gate)});
    dy = d_out;
  }
  const ValueId d_activated = d.activation("d_shared_activated", {rows, f});
  const ValueId d_gate_up = d.activation("d_shared_gate_up", {rows, 2 * f});
  project_rows_backward(d, kSharedDown, Op::shared_gather, dy, s.shared_activated, W.shared_down,
                        G.shared_down, kNoValue, d_activated, "d_shared_down");
  d.b.dgrad(Op::shared_act, {r(d_activated), r(s.shared_gate_up), w(d_gate_up)}, {{"activation", 0}});
  if (d.mesh.tp == 1) {
    d.b.dgrad(Op::shared_up, {r(d_gate_up), r(W.shared_up), d.b.acc(d_normed)});
    d.b.wgrad(Op::shared_up, {r(d_gate_up), r(s.mlp_normed), d.b.acc(G.shared_up), none()});
    return;
  }
  const ValueId d_all = d.activation("d_shared_all", {rows, h});
  d.b.dgrad(Op::shared_up, {r(d_gate_up), r(W.shared_up), w(d_all)});
  const ValueId own =
      scatter_rows(d, Op::shared_scatter, Phase::BackwardInput, Group::Tensor, d_all, "d_shared_own");
  d.b.dgrad(Op::shared_into, {r(own), program::u(d_normed)});
  const ValueId all =
      gather_rows(d, Op::shared_gather, Phase::BackwardInput, Group::Tensor, s.mlp_normed, "shared_again", 1);
  d.b.wgrad(Op::shared_up, {r(d_gate_up), r(all), d.b.acc(G.shared_up), none()});
}

}  // namespace pleat::model
