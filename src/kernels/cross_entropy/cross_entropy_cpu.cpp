#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "kernels/cross_entropy/loss_rows.h"

namespace pleat::kernels {
namespace {

// Turns the row into its gradient and returns its loss.
template <class T>
double row_gradient(T* __restrict row, int64_t n, int32_t label, double norm) {
  const T shift = maximum(row, n);
  const double label_logit = row[label];
  for (int64_t j = 0; j < n; ++j) row[j] = fast_exp(row[j] - shift);
  const double sum = sum_of(row, n);
  const double label_exp = row[label];
  const T scale = static_cast<T>(norm / sum);
  for (int64_t j = 0; j < n; ++j) row[j] *= scale;
  row[label] = static_cast<T>((label_exp / sum - 1) * norm);
  return static_cast<double>(shift) + std::log(sum) - label_logit;
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const T* logits = call[0].as<T>();
    const int32_t* labels = call[1].as<int32_t>();
    const uint8_t* mask = call[2].as<uint8_t>();
    T* token_loss = call[4].as<T>();
    const int64_t rows = call[0].dim(0), vocabulary = call[0].dim(1);
    check_labels("cross_entropy", labels, mask, rows, vocabulary);
    sum_rows(
        call, mask, rows, call[3],
        [&](int64_t t) {
          const T* row = logits + t * vocabulary;
          const T shift = maximum(row, vocabulary);
          const double value = static_cast<double>(shift) + std::log(sum_exp(row, vocabulary, shift)) -
                               static_cast<double>(row[labels[t]]);
          if (token_loss) token_loss[t] = static_cast<T>(value);
          return value;
        },
        [&](int64_t t) {
          if (token_loss) token_loss[t] = T(0);
        });
  }
};

template <class T>
struct BackwardInput {
  static void run(const Invocation& call) {
    const int32_t* labels = call[0].as<int32_t>();
    const uint8_t* mask = call[1].as<uint8_t>();
    const double norm = *call[2].as<double>();
    T* logits = call[3].as<T>();
    const int64_t rows = call[3].dim(0), vocabulary = call[3].dim(1);
    check_labels("cross_entropy", labels, mask, rows, vocabulary);
    sum_rows(
        call, mask, rows, call[4],
        [&](int64_t t) { return row_gradient(logits + t * vocabulary, vocabulary, labels[t], norm); },
        [&](int64_t t) { std::fill_n(logits + t * vocabulary, vocabulary, T(0)); });
  }
};

Kernel resolve_forward(const Invocation& call) {
  require_rank("cross_entropy", "logits", call[0], 2);
  require_labels("cross_entropy", call[1], call[2], call[3], call[0].dim(0));
  require_shape("cross_entropy", "token_loss", call[4], {call[0].dim(0)});
  require_same_dtype("cross_entropy", call, {"logits", "", "", "", "token_loss"});
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  require_rank("cross_entropy", "logits", call[3], 2);
  require_labels("cross_entropy", call[0], call[1], call[4], call[3].dim(0));
  require_norm("cross_entropy", call[2]);
  require_in_place("cross_entropy", "logits", call[3]);
  return select_float<BackwardInput>(call[3].dtype);
}

}  // namespace

std::span<const Binding> cross_entropy_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding rows[] = {
      {KernelKind::cross_entropy, Phase::Forward, resolve_forward},
      {KernelKind::cross_entropy, Phase::BackwardInput, resolve_backward_input},
      {KernelKind::vocab_stats, Phase::Forward, resolve_vocab_stats},
      {KernelKind::vocab_loss, Phase::Forward, resolve_vocab_loss_forward},
      {KernelKind::vocab_loss, Phase::BackwardInput, resolve_vocab_loss_backward_input},
  };
  return rows;
}

}  // namespace pleat::kernels
