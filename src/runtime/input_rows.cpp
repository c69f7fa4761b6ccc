#include "runtime/input_rows.h"

#include <algorithm>

namespace pleat::runtime {

void Microbatch::resize(size_t n) {
  for (auto* list : {&tokens, &labels, &positions, &doc_start}) list->resize(n);
  for (auto* list : {&loss_mask, &valid}) list->resize(n);
  token_index.resize(n);
}

std::vector<int32_t> context_rows(const config::Config& c, const model::Mesh& mesh, int64_t rank) {
  const int64_t length = c.train.seq_len;
  std::vector<int32_t> rows;
  for (int64_t s = 0; s < c.train.micro_batch; ++s) {
    if (mesh.cp == 1) {
      for (int64_t t = 0; t < length; ++t) rows.push_back(static_cast<int32_t>(s * length + t));
      continue;
    }
    const int64_t chunk = length / (2 * mesh.cp);
    for (const int64_t part : {rank, 2 * mesh.cp - 1 - rank})
      for (int64_t t = part * chunk; t < (part + 1) * chunk; ++t)
        rows.push_back(static_cast<int32_t>(s * length + t));
  }
  return rows;
}

InputRows::InputRows(const config::Config& c, const model::Mesh& mesh, const RankPlace& place)
    : several_(mesh.tp * mesh.cp > 1), rows_(context_rows(c, mesh, place.at(program::Group::Context))) {
  own_ = rows_.size() / static_cast<size_t>(mesh.tp);
  first_ = own_ * static_cast<size_t>(place.at(program::Group::Tensor));
  for (int64_t r = 0; r < mesh.cp; ++r)
    for (const int32_t row : context_rows(c, mesh, r)) inverse_.push_back(row);
  order_.resize(inverse_.size());
  for (size_t i = 0; i < inverse_.size(); ++i) order_[size_t(inverse_[i])] = static_cast<int32_t>(i);
}

void InputRows::write(interpret::Executor& executor, int64_t mb, const Microbatch& m) const {
  namespace step = program::step;
  const auto pick = [&](const auto& what, const auto& from, size_t begin, size_t count) {
    const auto to = executor.at(what, mb);
    for (size_t t = 0; t < count; ++t) to[t] = from[size_t(rows_[begin + t])];
  };
  const auto copy = [&](const auto& what, const auto& from) {
    std::copy(from.begin(), from.end(), executor.at(what, mb).begin());
  };
  pick(step::tokens, m.tokens, 0, rows_.size());
  pick(step::labels, m.labels, 0, rows_.size());
  pick(step::loss_mask, m.loss_mask, 0, rows_.size());
  pick(step::positions, m.positions, 0, rows_.size());
  pick(step::valid, m.valid, first_, own_);
  pick(step::token_index, m.token_index, first_, own_);
  copy(step::doc_start, m.doc_start);
  if (!several_) return;
  copy(step::all_valid, m.valid);
  copy(step::order, order_);
  copy(step::inverse_order, inverse_);
  copy(step::context_row, rows_);
  copy(step::own_row, std::span(rows_).subspan(first_, own_));
  if (!executor.has(step::all_tokens, mb)) return;
  copy(step::all_tokens, m.tokens);
  copy(step::all_labels, m.labels);
  copy(step::all_loss_mask, m.loss_mask);
}

}  // namespace pleat::runtime
