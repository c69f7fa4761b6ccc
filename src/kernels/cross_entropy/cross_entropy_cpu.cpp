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
    const signature::cross_entropy::Forward<Arg> args(call.args);
    const T* logits = args.logits.as<T>();
    const int32_t* labels = args.labels.as<int32_t>();
    const uint8_t* mask = args.mask.as<uint8_t>();
    T* token_loss = args.token_loss.as<T>();
    const int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
    check_labels("cross_entropy", labels, mask, rows, vocabulary);
    sum_rows(
        call, mask, rows, args.loss,
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
    const signature::cross_entropy::BackwardInput<Arg> args(call.args);
    const int32_t* labels = args.labels.as<int32_t>();
    const uint8_t* mask = args.mask.as<uint8_t>();
    const double norm = *args.norm.as<double>();
    T* logits = args.logits.as<T>();
    const int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
    check_labels("cross_entropy", labels, mask, rows, vocabulary);
    sum_rows(
        call, mask, rows, args.loss,
        [&](int64_t t) { return row_gradient(logits + t * vocabulary, vocabulary, labels[t], norm); },
        [&](int64_t t) { std::fill_n(logits + t * vocabulary, vocabulary, T(0)); });
  }
};

Kernel resolve_forward(const Invocation& call) {
  const signature::cross_entropy::Forward<Arg> args(call.args);
  if (args.token_loss.present && args.token_loss.dtype != args.logits.dtype) return nullptr;
  return select_float<Forward>(args.logits.dtype);
}

constexpr Binding kTable[] = {
    row<signature::cross_entropy::Forward>(resolve_forward),
    row<signature::cross_entropy::BackwardInput, BackwardInput>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> cross_entropy_bindings() { return kTable; }

}  // namespace pleat::kernels
