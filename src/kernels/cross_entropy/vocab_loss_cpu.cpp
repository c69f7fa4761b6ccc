// Cross entropy when every rank holds some columns of the logits: three numbers per row and rank are all that
// has to travel.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cross_entropy/contract.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/loss_rows.h"

namespace pleat::kernels {
namespace {

// One row over all pieces. `top` is the maximum of some piece, so it is exact in the logits' own type.
struct WholeRow {
  double top, sum, label_logit;
  double loss() const { return top + std::log(sum) - label_logit; }
};

WholeRow combine(const double* all_stats, int64_t num_ranks, int64_t num_rows, int64_t t) {
  const auto of = [&](int64_t rank) { return all_stats + (rank * num_rows + t) * kNumVocabStats; };
  WholeRow row{-std::numeric_limits<double>::infinity(), 0, 0};
  for (int64_t rank = 0; rank < num_ranks; ++rank) row.top = of(rank)[0] > row.top ? of(rank)[0] : row.top;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    const double* stats = of(rank);
    row.sum += stats[1] * std::exp(stats[0] - row.top);
    row.label_logit += stats[2];
  }
  return row;
}

// Of `columns` local columns from `first` on, those that are in the vocabulary; the rest is padding.
int64_t real_columns(const Invocation& call, int64_t first, int64_t columns) {
  return std::clamp<int64_t>(call.integer("vocabulary") - first, 0, columns);
}

template <class T>
struct Stats {
  static void run(const Invocation& call) {
    const signature::vocab_stats::Forward<Arg> args(call.args);
    const T* logits = args.logits.as<T>();
    const int32_t* labels = args.labels.as<int32_t>();
    const uint8_t* mask = args.mask.as<uint8_t>();
    double* stats = args.stats.as<double>();
    const int64_t rows = args.logits.dim(0), columns = args.logits.dim(1);
    const int64_t first = columns * coordinate(args.coords, call);
    const int64_t real = real_columns(call, first, columns);
    check_labels("vocab_stats", labels, mask, rows, call.integer("vocabulary"));
    const Tiling tiling = loss_tiling(rows);
    call.pool->for_each_tile(tiling.num_tiles(), [&](int64_t tile_idx) {
      for (int64_t t = tiling.begin(tile_idx); t < tiling.end(tile_idx); ++t) {
        double* to = stats + t * kNumVocabStats;
        if (!mask[t]) {
          std::fill_n(to, kNumVocabStats, 0.0);
          continue;
        }
        const T* row = logits + t * columns;
        const T shift = maximum(row, real);
        const int64_t label = labels[t] - first;
        to[0] = static_cast<double>(shift);
        to[1] = sum_exp(row, real, shift);
        to[2] = label >= 0 && label < real ? static_cast<double>(row[label]) : 0.0;
      }
    });
  }
};

template <class T>
struct Forward {
  static void run(const Invocation& call) {
    const signature::vocab_loss::Forward<Arg> args(call.args);
    const double* all_stats = args.all_stats.as<double>();
    const uint8_t* mask = args.mask.as<uint8_t>();
    T* token_loss = args.token_loss.as<T>();
    const int64_t rows = args.mask.dim(0), num_ranks = ranks_of_stats(args.all_stats, rows);
    sum_rows(
        call, mask, rows, args.loss,
        [&](int64_t t) {
          const double value = combine(all_stats, num_ranks, rows, t).loss();
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
    const signature::vocab_loss::BackwardInput<Arg> args(call.args);
    const double* all_stats = args.all_stats.as<double>();
    const int32_t* labels = args.labels.as<int32_t>();
    const uint8_t* mask = args.mask.as<uint8_t>();
    const double norm = *args.norm.as<double>();
    T* logits = args.logits.as<T>();
    const int64_t rows = args.logits.dim(0), columns = args.logits.dim(1),
                  num_ranks = ranks_of_stats(args.all_stats, rows);
    const int64_t first = columns * coordinate(args.coords, call);
    const int64_t real = real_columns(call, first, columns);
    check_labels("vocab_loss", labels, mask, rows, call.integer("vocabulary"));
    sum_rows(
        call, mask, rows, args.loss,
        [&](int64_t t) {
          const WholeRow whole = combine(all_stats, num_ranks, rows, t);
          T* __restrict row = logits + t * columns;
          const T shift = static_cast<T>(whole.top), scale = static_cast<T>(norm / whole.sum);
          const int64_t label = labels[t] - first;
          const bool here = label >= 0 && label < real;
          const double label_exp = here ? static_cast<double>(fast_exp(row[label] - shift)) : 0;
          for (int64_t j = 0; j < real; ++j) row[j] = fast_exp(row[j] - shift) * scale;
          std::fill(row + real, row + columns, T(0));
          if (here) row[label] = static_cast<T>((label_exp / whole.sum - 1) * norm);
          return whole.loss();
        },
        [&](int64_t t) { std::fill_n(logits + t * columns, columns, T(0)); });
  }
};

constexpr Binding kTable[] = {
    row<signature::vocab_stats::Forward, Stats>([](const auto& a) { return a.logits.dtype; }),
    row<signature::vocab_loss::Forward, Forward>([](const auto& a) { return a.token_loss.dtype; }),
    row<signature::vocab_loss::BackwardInput, BackwardInput>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> vocab_loss_bindings() { return kTable; }

}  // namespace pleat::kernels
