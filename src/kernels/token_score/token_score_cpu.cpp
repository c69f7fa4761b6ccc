#include "kernels/token_score/token_score.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/math/exp.h"
#include "kernels/math/reduce.h"

namespace pleat::kernels {
namespace {

template <class T>
struct Score {
  static void run(const Invocation& call) {
    const signature::token_score::Forward<Arg> args(call.args);
    const int64_t rows = args.logits.dim(0), vocabulary = args.logits.dim(1);
    const T* logits = args.logits.as<T>();
    const int32_t* labels = args.labels.as<int32_t>();
    const uint8_t* mask = args.mask.as<uint8_t>();
    double* log_prob = args.log_prob.as<double>();
    int32_t* best = args.best.as<int32_t>();
    for (int64_t t = 0; t < rows; ++t)
      if (mask[t] && (labels[t] < 0 || labels[t] >= vocabulary))
        refuse(args.labels, "label {} of row {} is outside the vocabulary of {}", labels[t], t, vocabulary);
    call.pool->for_each_tile(rows, [&](int64_t t) {
      log_prob[t] = 0;
      best[t] = -1;
      if (!mask[t]) return;
      const T* row = logits + t * vocabulary;
      T top = -std::numeric_limits<T>::infinity();
      for (int64_t v = 0; v < vocabulary; ++v)
        if (row[v] > top || (best[t] < 0 && row[v] == top)) top = row[v], best[t] = static_cast<int32_t>(v);
      constexpr int64_t kBlock = 1024;
      T block[kBlock];
      double sum = 0;
      for (int64_t first = 0; first < vocabulary; first += kBlock) {
        const int64_t count = std::min(kBlock, vocabulary - first);
        for (int64_t j = 0; j < count; ++j) block[j] = fast_exp(row[first + j] - top);
        sum += sum_of(block, count);
      }
      log_prob[t] = static_cast<double>(row[labels[t]]) - static_cast<double>(top) - std::log(sum);
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::token_score::Forward, Score>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> token_score_bindings() { return kTable; }

}  // namespace pleat::kernels
