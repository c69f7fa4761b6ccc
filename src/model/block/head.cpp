// Final norm, vocabulary projection and loss, in chunks of rows so that the logits of a long sequence are
// never all in memory. When training, each chunk's backward follows its forward at once: the logits become
// their gradient in place. Tensor ranks hold some of the vocabulary each and work on all rows of their group;
// three numbers per row and rank make the loss whole.
#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "model/exchange.h"
#include "model/words.h"

namespace pleat::model {
namespace {

program::AttrSet vocabulary_part(const Decoder& d) {
  return {{"group", double(static_cast<int>(Group::Tensor))},
          {"vocabulary", double(d.config.model.vocab_size)}};
}

// The statistics of all tensor ranks for one chunk of rows.
ValueId all_stats(Decoder& d, ValueId logits, ValueId labels, ValueId mask, int64_t rows,
                  const std::string& tag) {
  const ValueId own =
      d.activation("loss_stats" + tag, tensor::Dtype::F64, {rows, 3}, program::Owner::Workspace);
  const ValueId all = d.activation("all_loss_stats" + tag, tensor::Dtype::F64, {d.mesh.tp, rows, 3},
                                   program::Owner::Workspace);
  d.b.forward(Op::vocab_stats, {r(logits), r(labels), r(mask), r(d.coords), w(own)}, vocabulary_part(d));
  d.b.exchange(Op::loss_gather, Phase::Forward, Group::Tensor, {r(own), w(all)});
  return all;
}

}  // namespace

void project_logits(Decoder& d, ValueId normed, ValueId logits) {
  d.b.forward(Op::head, {r(normed), r(d.head), none(), none(), w(logits)});
}

ValueId head_loss(Decoder& d, program::Place place, ValueId normed, const LossValues& values) {
  const int64_t rows_all = d.attention_tokens, h = d.config.model.hidden_size;
  const int64_t V = base::ceil_div(d.config.model.vocab_size, d.mesh.tp);
  const bool training = d.purpose == Purpose::Train, cut = d.mesh.tp > 1;
  const ValueId all = gather_rows(d, Op::head_gather, Phase::Forward, Group::Tensor, normed, "final_all");
  const ValueId d_all = training ? d.activation("d_final_normed", {rows_all, h}) : kNoValue;
  const int64_t chunk = std::min(d.config.train.loss_chunk, rows_all);
  for (int64_t begin = 0, part = 0; begin < rows_all; begin += chunk, ++part) {
    const int64_t rows = std::min(chunk, rows_all - begin);
    const std::string tag = fmt::format("[{}]", part);
    const ValueId x = d.b.rows(all, begin, rows, tag);
    const ValueId labels = d.b.rows(values.labels, begin, rows, tag);
    const ValueId mask = d.b.rows(values.mask, begin, rows, tag);
    const ValueId logits = d.activation("logits" + tag, d.compute, {rows, V}, program::Owner::Workspace);
    d.b.at({place.microbatch, place.layer, static_cast<int>(part)});
    project_logits(d, x, logits);
    const ValueId stats = cut ? all_stats(d, logits, labels, mask, rows, tag) : kNoValue;
    if (!training) {
      if (cut) {
        d.b.forward(Op::vocab_loss, {r(stats), r(mask), d.b.acc(values.loss), none()});
      } else {
        d.b.forward(Op::loss, {r(logits), r(labels), r(mask), d.b.acc(values.loss), none()});
      }
      continue;
    }
    const ValueId dx = d.b.rows(d_all, begin, rows, tag);
    if (cut) {
      d.b.dgrad(Op::vocab_loss,
                {r(stats), r(labels), r(mask), r(values.norm), r(d.coords), u(logits), d.b.acc(values.loss)},
                vocabulary_part(d));
    } else {
      d.b.dgrad(Op::loss, {r(labels), r(mask), r(values.norm), u(logits), d.b.acc(values.loss)});
    }
    d.b.dgrad(Op::head, {r(logits), r(d.head), w(dx)});
    d.b.wgrad(Op::head, {r(logits), r(x), d.b.acc(d.d_head), none()});
  }
  d.b.at({place.microbatch, place.layer});
  if (!training) return kNoValue;
  return scatter_rows(d, Op::head_scatter, Phase::BackwardInput, Group::Tensor, d_all, "d_final_own");
}

ValueId final_norm_forward(Decoder& d, int mb, ValueId x) {
  d.b.at({mb, -1});
  const auto& m = d.config.model;
  const int64_t T = d.num_tokens, h = m.hidden_size;
  const size_t i = size_t(mb);
  d.final_x[i] = x;
  d.final_rstd[i] = d.statistic("final_rstd", {T});
  d.final_normed[i] = d.activation("final_normed", {T, h});
  d.b.forward(Op::final_norm, {r(x), r(d.final_norm), w(d.final_normed[i]), w(d.final_rstd[i])},
              {{"eps", m.norm_eps}});
  return d.final_normed[i];
}

void head_forward(Decoder& d, int mb, ValueId x) {
  final_norm_forward(d, mb, x);
  const auto& m = d.config.model;
  const int64_t T = d.num_tokens;
  const size_t i = size_t(mb);
  if (d.purpose == Purpose::Logits) {
    PLEAT_CHECK(d.mesh.tp == 1, "logits of a vocabulary cut over ranks");
    d.logits_out.push_back(d.b.value(program::step::logits.name(mb), d.compute, {T, m.vocab_size},
                                     program::Owner::Results, program::Life::Result));
    project_logits(d, d.final_normed[i], d.logits_out.back());
    return;
  }
  d.d_final_normed[i] = head_loss(d, {mb, -1}, d.final_normed[i],
                                  {d.inputs[i].labels, d.inputs[i].loss_mask, d.step.norm, d.loss});
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
