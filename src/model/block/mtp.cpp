// Multi-token prediction (DeepSeek-V3): depth d = 1..D is layer num_layers + d - 1. Row t joins what the head
// of the depth before it reads (for d = 1: the final norm's output) with the embedding of token t + d,
//   x = W_e norm(embedding) + W_h norm(hidden)   (one matrix on [embedding | hidden], kept as its two halves)
// runs one decoder layer, a norm of its own and the shared head, and predicts token t + d + 1.
//
// The loss of a depth is a mean over the rows it predicts in the whole step, so all microbatches are shifted
// and counted before the first backward. Order of sums: the head's gradient takes the main loss first, then
// the depths upwards; the embedding's takes the depths downwards, then the main input.
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

int layer_of(const Decoder& d, size_t depth_idx) {
  return static_cast<int>(d.config.model.num_layers) + static_cast<int>(depth_idx);
}

}  // namespace

void mtp_prepare(Decoder& d) {
  using tensor::Dtype;
  const int64_t all = d.microbatch_tokens, rows = d.attention_tokens;
  const bool split = d.mesh.cp > 1, several = d.mesh.tp * d.mesh.cp > 1;
  for (size_t k = 0; k < d.mtp.size(); ++k) {
    MtpDepth& depth = d.mtp[k];
    const int layer = layer_of(d, k);
    depth.count =
        d.b.value(program::tagged("mtp_count", -1, layer), Dtype::I64, {1}, program::Owner::Workspace);
    depth.norm =
        d.b.value(program::tagged("mtp_norm", -1, layer), Dtype::F64, {1}, program::Owner::Workspace);
    for (size_t mb = 0; mb < d.inputs.size(); ++mb) {
      d.b.at({static_cast<int>(mb), layer});
      const MicrobatchInputs& in = d.inputs[mb];
      MtpSaved& s = depth.saved[mb];
      const auto value = [&](const std::string& what, Dtype dtype, int64_t n) {
        return d.activation(what, dtype, {n}, program::Owner::Workspace);
      };
      // Neighbours in the text are neighbours in natural order only.
      s.tokens = value(split ? "mtp_all_tokens" : "mtp_tokens", Dtype::I32, all);
      s.labels = value(split ? "mtp_all_labels" : "mtp_labels", Dtype::I32, all);
      s.mask = value(split ? "mtp_all_mask" : "mtp_mask", Dtype::U8, all);
      // The step prepares all microbatches before it begins the first one.
      d.b.at({-1, layer, static_cast<int>(mb)});
      d.b.forward(Op::mtp_shift,
                  {r(split ? in.all_tokens : in.tokens), r(split ? in.all_labels : in.labels),
                   r(split ? in.all_loss_mask : in.loss_mask), r(several ? in.all_valid : in.valid),
                   r(in.doc_start), w(s.tokens), w(s.labels), w(s.mask), d.b.acc(depth.count)},
                  {{"depth", double(k + 1)}, {"seq_len", double(d.config.train.seq_len)}});
      if (!split) continue;
      const auto own = [&](ValueId& v, const char* what, Dtype dtype, int part) {
        d.b.at({static_cast<int>(mb), layer});
        const ValueId to = value(what, dtype, rows);
        d.b.at({-1, layer, static_cast<int>(mb) * 3 + part});
        d.b.forward(Op::mtp_order, {r(v), r(in.context_row), none(), w(to)});
        v = to;
      };
      own(s.tokens, "mtp_tokens", Dtype::I32, 0);
      own(s.labels, "mtp_labels", Dtype::I32, 1);
      own(s.mask, "mtp_mask", Dtype::U8, 2);
    }
    d.b.at({-1, layer, 2});
    if (d.mesh.size(Group::Data) > 1)
      d.b.exchange(Op::count_reduce, Phase::Forward, Group::Data, {u(depth.count)});
    d.b.at({-1, layer});
    d.b.forward(Op::mtp_weight, {r(depth.count), w(depth.norm)},
                {{"weight", d.config.train.mtp_loss_factor / double(d.mtp.size())}});
  }
}

void mtp_forward(Decoder& d, int mb) {
  const int64_t T = d.num_tokens, h = d.config.model.hidden_size;
  const program::AttrSet eps = {{"eps", d.config.model.norm_eps}};
  ValueId hidden = d.final_normed[size_t(mb)];
  for (size_t k = 0; k < d.mtp.size(); ++k) {
    const int layer = layer_of(d, k);
    const LayerWeights& W = d.weights[size_t(layer)];
    MtpSaved& s = d.mtp[k].saved[size_t(mb)];
    d.b.at({mb, layer});
    s.hidden = hidden;
    s.embed_rstd = d.statistic("mtp_embed_rstd", {T});
    s.embed_normed = d.activation("mtp_embed_normed", {T, h});
    s.hidden_rstd = d.statistic("mtp_hidden_rstd", {T});
    s.hidden_normed = d.activation("mtp_hidden_normed", {T, h});
    const ValueId projected = d.activation("mtp_embed_projected", {T, h});
    ValueId x = d.activation("mtp_x", {T, h});
    s.embedded = embed(d, s.tokens, "mtp_embedded");
    d.b.forward(Op::mtp_embed_norm, {r(s.embedded), r(W.mtp_embed_norm), w(s.embed_normed), w(s.embed_rstd)},
                eps);
    d.b.forward(Op::mtp_hidden_norm, {r(hidden), r(W.mtp_hidden_norm), w(s.hidden_normed), w(s.hidden_rstd)},
                eps);
    d.b.forward(Op::mtp_embed_proj, {r(s.embed_normed), r(W.mtp_embed_proj), none(), none(), w(projected)});
    d.b.forward(Op::mtp_hidden_proj, {r(s.hidden_normed), r(W.mtp_hidden_proj), none(), r(projected), w(x)});
    x = layer_forward(d, mb, layer, x);

    d.b.at({mb, layer});
    s.final_x = x;
    s.final_rstd = d.statistic("final_rstd", {T});
    s.final_normed = d.activation("final_normed", {T, h});
    d.b.forward(Op::final_norm, {r(x), r(W.mtp_final_norm), w(s.final_normed), w(s.final_rstd)}, eps);
    s.d_final_normed =
        head_loss(d, {mb, layer}, s.final_normed, {s.labels, s.mask, d.mtp[k].norm, d.mtp[k].loss});
    hidden = s.final_normed;
  }
}

void mtp_backward(Decoder& d, int mb) {
  const int64_t T = d.num_tokens, h = d.config.model.hidden_size;
  const program::AttrSet eps = {{"eps", d.config.model.norm_eps}};
  for (size_t k = d.mtp.size(); k-- > 0;) {
    const int layer = layer_of(d, k);
    const LayerWeights &W = d.weights[size_t(layer)], &G = d.grads[size_t(layer)];
    const MtpSaved& s = d.mtp[k].saved[size_t(mb)];
    d.b.at({mb, layer});
    ValueId dx = d.activation("d_final_x", {T, h});
    d.b.dgrad(Op::final_norm,
              {r(s.d_final_normed), r(s.final_x), r(W.mtp_final_norm), r(s.final_rstd), none(), w(dx)}, eps);
    d.b.wgrad(Op::final_norm,
              {r(s.d_final_normed), r(s.final_x), r(s.final_rstd), d.b.acc(G.mtp_final_norm)});
    dx = layer_backward(d, mb, layer, dx);

    d.b.at({mb, layer});
    const ValueId d_hidden_normed = d.activation("d_mtp_hidden_normed", {T, h});
    const ValueId d_embed_normed = d.activation("d_mtp_embed_normed", {T, h});
    const ValueId d_embedded = d.activation("d_mtp_embedded", {T, h});
    // The head of the depth before has written its part already.
    const ValueId d_hidden =
        k > 0 ? d.mtp[k - 1].saved[size_t(mb)].d_final_normed : d.d_final_normed[size_t(mb)];
    d.b.dgrad(Op::mtp_hidden_proj, {r(dx), r(W.mtp_hidden_proj), w(d_hidden_normed)});
    d.b.wgrad(Op::mtp_hidden_proj, {r(dx), r(s.hidden_normed), d.b.acc(G.mtp_hidden_proj), none()});
    d.b.dgrad(Op::mtp_hidden_norm,
              {r(d_hidden_normed), r(s.hidden), r(W.mtp_hidden_norm), r(s.hidden_rstd), none(), u(d_hidden)},
              eps);
    d.b.wgrad(Op::mtp_hidden_norm,
              {r(d_hidden_normed), r(s.hidden), r(s.hidden_rstd), d.b.acc(G.mtp_hidden_norm)});
    d.b.dgrad(Op::mtp_embed_proj, {r(dx), r(W.mtp_embed_proj), w(d_embed_normed)});
    d.b.wgrad(Op::mtp_embed_proj, {r(dx), r(s.embed_normed), d.b.acc(G.mtp_embed_proj), none()});
    d.b.dgrad(Op::mtp_embed_norm,
              {r(d_embed_normed), r(s.embedded), r(W.mtp_embed_norm), r(s.embed_rstd), none(), w(d_embedded)},
              eps);
    d.b.wgrad(Op::mtp_embed_norm,
              {r(d_embed_normed), r(s.embedded), r(s.embed_rstd), d.b.acc(G.mtp_embed_norm)});
    embed_backward(d, s.tokens, d_embedded, "d_mtp_embedded");
  }
}

}  // namespace pleat::model
