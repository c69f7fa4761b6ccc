#include "runtime/input_rows.h"

#include <fmt/format.h>

#include <cstring>

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
    : several_(mesh.tp * mesh.cp > 1),
      shifted_(mesh.cp > 1 && c.model.num_mtp_layers > 0),
      rows_(context_rows(c, mesh, place.at(program::Group::Context))) {
  own_ = rows_.size() / static_cast<size_t>(mesh.tp);
  first_ = own_ * static_cast<size_t>(place.at(program::Group::Tensor));
  for (int64_t r = 0; r < mesh.cp; ++r)
    for (const int32_t row : context_rows(c, mesh, r)) inverse_.push_back(row);
  order_.resize(inverse_.size());
  for (size_t i = 0; i < inverse_.size(); ++i) order_[size_t(inverse_[i])] = static_cast<int32_t>(i);
}

void InputRows::write(interpret::Executor& executor, int64_t mb, const Microbatch& m) const {
  const auto data = [&](const char* what) { return executor.data(fmt::format("mb{}.{}", mb, what)); };
  const auto pick = [&](const char* what, const auto& from, size_t begin, size_t count) {
    using T = typename std::decay_t<decltype(from)>::value_type;
    T* to = static_cast<T*>(data(what));
    for (size_t t = 0; t < count; ++t) to[t] = from[size_t(rows_[begin + t])];
  };
  const auto copy = [&](const char* what, const auto& from) {
    std::memcpy(data(what), from.data(), from.size() * sizeof from[0]);
  };
  pick("tokens", m.tokens, 0, rows_.size());
  pick("labels", m.labels, 0, rows_.size());
  pick("loss_mask", m.loss_mask, 0, rows_.size());
  pick("positions", m.positions, 0, rows_.size());
  pick("valid", m.valid, first_, own_);
  pick("token_index", m.token_index, first_, own_);
  copy("doc_start", m.doc_start);
  if (!several_) return;
  copy("all_valid", m.valid);
  copy("order", order_);
  copy("inverse_order", inverse_);
  copy("context_row", rows_);
  std::memcpy(data("own_row"), rows_.data() + first_, own_ * sizeof(int32_t));
  if (!shifted_ || executor.program().name != "train") return;
  copy("all_tokens", m.tokens);
  copy("all_labels", m.labels);
  copy("all_loss_mask", m.loss_mask);
}

}  // namespace pleat::runtime
