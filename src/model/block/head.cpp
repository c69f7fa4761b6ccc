// Final norm, vocabulary projection and loss, in chunks of rows so that the logits of a long sequence are
// never all in memory. When training, each chunk's backward follows its forward at once: the logits become
// their gradient in place.
#include <fmt/format.h>

#include <algorithm>

#include "model/decoder.h"

namespace pleat::model {

using program::none;
using program::Op;
using program::r;
using program::u;
using program::w;

ValueId final_norm_forward(Decoder& d, int mb, ValueId x) {
  d.b.at({mb, -1});
  const auto& m = d.config.model;
  const int64_t T = d.num_tokens, h = m.hidden_size;
  const size_t i = size_t(mb);
  d.final_x[i] = x;
  d.final_rstd[i] = d.activation("final_rstd", {T});
  d.final_normed[i] = d.activation("final_normed", {T, h});
  d.b.forward(Op::final_norm, {r(x), r(d.final_norm), w(d.final_normed[i]), w(d.final_rstd[i])},
              {{"eps", m.norm_eps}});
  return d.final_normed[i];
}

void head_forward(Decoder& d, int mb, ValueId x) {
  final_norm_forward(d, mb, x);
  const auto& m = d.config.model;
  const int64_t T = d.num_tokens, h = m.hidden_size;
  const size_t i = size_t(mb);
  if (d.purpose == Purpose::Logits) {
    d.logits_out.push_back(d.b.value(d.here("logits"), d.compute, {T, m.vocab_size}, program::Owner::Results,
                                     program::Life::Result));
    d.b.forward(Op::head, {r(d.final_normed[i]), r(d.head), none(), none(), w(d.logits_out.back())});
    return;
  }

  const bool training = d.purpose == Purpose::Train;
  if (training) d.d_final_normed[i] = d.activation("d_final_normed", {T, h});
  const int64_t chunk = std::min(d.config.train.loss_chunk, T);
  for (int64_t begin = 0, part = 0; begin < T; begin += chunk, ++part) {
    const int64_t rows = std::min(chunk, T - begin);
    const std::string tag = fmt::format("[{}]", part);
    const ValueId normed = d.b.rows(d.final_normed[i], begin, rows, tag);
    const ValueId labels = d.b.rows(d.inputs[i].labels, begin, rows, tag);
    const ValueId mask = d.b.rows(d.inputs[i].loss_mask, begin, rows, tag);
    const ValueId logits =
        d.activation("logits" + tag, d.compute, {rows, m.vocab_size}, program::Owner::Workspace);
    d.b.at({mb, -1, static_cast<int>(part)});
    d.b.forward(Op::head, {r(normed), r(d.head), none(), none(), w(logits)});
    if (!training) {
      d.b.forward(Op::loss, {r(logits), r(labels), r(mask), d.b.acc(d.loss), none()});
      continue;
    }
    const ValueId d_normed = d.b.rows(d.d_final_normed[i], begin, rows, tag);
    d.b.dgrad(Op::loss, {r(labels), r(mask), r(d.step.norm), u(logits), d.b.acc(d.loss)});
    d.b.dgrad(Op::head, {r(logits), r(d.head), w(d_normed)});
    d.b.wgrad(Op::head, {r(logits), r(normed), d.b.acc(d.d_head), none()});
  }
}

ValueId head_backward(Decoder& d, int mb) {
  d.b.at({mb, -1});
  const size_t i = size_t(mb);
  const ValueId dx = d.activation("d_final_x", {d.num_tokens, d.config.model.hidden_size});
  d.b.dgrad(Op::final_norm,
            {r(d.d_final_normed[i]), r(d.final_x[i]), r(d.final_norm), r(d.final_rstd[i]), none(), w(dx)},
            {{"eps", d.config.model.norm_eps}});
  d.b.wgrad(Op::final_norm,
            {r(d.d_final_normed[i]), r(d.final_x[i]), r(d.final_rstd[i]), d.b.acc(d.d_final_norm)});
  return dx;
}

}  // namespace pleat::model
