#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"
#include "kernels/math/require.h"
#include "kernels/math/tiles.h"

namespace pleat::kernels {
namespace {

// Partial sums of the loss live on the stack, one per tile.
constexpr int64_t kMaxTiles = 1024;
Tiling loss_tiling(int64_t num_rows) {
  return {num_rows, std::max<int64_t>(8, base::ceil_div(num_rows, kMaxTiles))};
}

void check_labels(const int32_t* labels, const uint8_t* mask, int64_t num_rows, int64_t vocabulary) {
  for (int64_t t = 0; t < num_rows; ++t)
    if (mask[t] && (labels[t] < 0 || labels[t] >= vocabulary))
      base::fail("[cross_entropy] label {} of row {} is outside the vocabulary of {}", labels[t], t,
                 vocabulary);
}

// Running maxima side by side in vectors. NaN is passed over here and caught by the exponentials.
template <class T>
T maximum(const T* row, int64_t n) {
  typedef T Lanes __attribute__((vector_size(64)));
  constexpr int64_t kLanes = 64 / sizeof(T);
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  Lanes even = Lanes{} + kLowest, odd = even;
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    Lanes a, b;
    std::memcpy(&a, row + i, sizeof a);
    std::memcpy(&b, row + i + kLanes, sizeof b);
    even = a > even ? a : even;
    odd = b > odd ? b : odd;
  }
  T top = kLowest;
  for (; i < n; ++i) top = row[i] > top ? row[i] : top;
  even = odd > even ? odd : even;
  for (int64_t j = 0; j < kLanes; ++j) top = even[j] > top ? even[j] : top;
  return top;
}

template <class T>
double sum_exp(const T* row, int64_t n, T shift) {
  constexpr int64_t kBlock = 1024;
  T block[kBlock];
  double sum = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t count = std::min(kBlock, n - first);
    for (int64_t j = 0; j < count; ++j) block[j] = fast_exp(row[first + j] - shift);
    sum += sum_of(block, count);
  }
  return sum;
}

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

// Runs row_loss(t) over unmasked rows and masked(t) over the others, and writes {sum, count}.
template <class RowLoss, class Masked>
void sum_rows(const Invocation& call, const uint8_t* mask, int64_t num_rows, const Arg& loss,
              const RowLoss& row_loss, const Masked& masked) {
  double partial[kMaxTiles];
  const Tiling tiling = loss_tiling(num_rows);
  call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
    double sum = 0;
    for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
      if (mask[t]) {
        sum += row_loss(t);
      } else {
        masked(t);
      }
    }
    partial[tile_idx] = sum;
  });
  double sum = 0, num_tokens = 0;
  for (int64_t i = 0; i < tiling.num_tiles(); ++i) sum += partial[i];
  for (int64_t t = 0; t < num_rows; ++t) num_tokens += mask[t] != 0;
  double* to = loss.as<double>();
  const bool accumulate = loss.into() == Into::Accumulate;
  to[0] = accumulate ? to[0] + sum : sum;
  to[1] = accumulate ? to[1] + num_tokens : num_tokens;
}

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const T* logits = call[0].as<T>();
    const int32_t* labels = call[1].as<int32_t>();
    const uint8_t* mask = call[2].as<uint8_t>();
    T* token_loss = call[4].as<T>();
    const int64_t rows = call[0].dim(0), vocabulary = call[0].dim(1);
    check_labels(labels, mask, rows, vocabulary);
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
    check_labels(labels, mask, rows, vocabulary);
    sum_rows(
        call, mask, rows, call[4],
        [&](int64_t t) { return row_gradient(logits + t * vocabulary, vocabulary, labels[t], norm); },
        [&](int64_t t) { std::fill_n(logits + t * vocabulary, vocabulary, T(0)); });
  }
};

void require_labels(const Arg& labels, const Arg& mask, const Arg& loss, int64_t rows) {
  require_shape("cross_entropy", "labels", labels, {rows});
  require_dtype("cross_entropy", "labels", labels, tensor::Dtype::I32);
  require_shape("cross_entropy", "mask", mask, {rows});
  require_dtype("cross_entropy", "mask", mask, tensor::Dtype::U8);
  require_shape("cross_entropy", "loss", loss, {2});
  require_dtype("cross_entropy", "loss", loss, tensor::Dtype::F64);
}

Kernel resolve_forward(const Invocation& call) {
  require_rank("cross_entropy", "logits", call[0], 2);
  require_labels(call[1], call[2], call[3], call[0].dim(0));
  require_shape("cross_entropy", "token_loss", call[4], {call[0].dim(0)});
  require_same_dtype("cross_entropy", call, {"logits", "", "", "", "token_loss"});
  return select_float<Forward>(call[0].dtype);
}

Kernel resolve_backward_input(const Invocation& call) {
  require_rank("cross_entropy", "logits", call[3], 2);
  require_labels(call[0], call[1], call[4], call[3].dim(0));
  require_dtype("cross_entropy", "norm", call[2], tensor::Dtype::F64);
  if (call[2].size() < 1) base::fail("[cross_entropy] argument 'norm' is empty, needed 1 element or more");
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
  };
  return rows;
}

}  // namespace pleat::kernels
