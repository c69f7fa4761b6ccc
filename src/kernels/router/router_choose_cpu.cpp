// Scores, the choice of experts, and their probabilities.
#include "kernels/router/choose.h"

#include <algorithm>
#include <cmath>

#include "kernels/router/sinkhorn.h"
#include "kernels/router/token_tiles.h"
#include "kernels/router/top_k.h"

namespace pleat::kernels {
namespace {

// Keys of one token's experts; returns the logits themselves where they are the keys.
template <class R>
const R* choice_keys(const ChooseSettings& set, const R* logits, const float* bias, R* keys) {
  const int64_t E = set.experts;
  if (set.chooses_by_logit()) return logits;
  if (set.sinkhorn && set.top_k == 1) {
    for (int64_t e = 0; e < E; ++e) keys[e] = point_score(Score::Sigmoid, logits[e]);
  } else if (set.score == Score::Softmax) {
    row_softmax(logits, E, keys);
  } else {
    for (int64_t e = 0; e < E; ++e) keys[e] = point_score(set.score, logits[e]);
    if (bias)
      for (int64_t e = 0; e < E; ++e) keys[e] += static_cast<R>(bias[e]);
  }
  return keys;
}

template <class R>
void choose_in_groups(const ChooseSettings& set, const R* keys, TopK<R>& chosen) {
  const int64_t size = set.experts / set.groups;
  TopK<double> best_groups(set.group_topk);
  TopK<R> inside(set.group_score_topk);
  for (int64_t g = 0; g < set.groups; ++g) {
    inside.reset();
    inside.push_range(keys, g * size, (g + 1) * size);
    best_groups.push(inside.sum(), static_cast<int32_t>(g));
  }
  int32_t kept[kMaxExperts];
  best_groups.ascending(kept);
  for (int64_t i = 0; i < set.group_topk; ++i) chosen.push_range(keys, kept[i] * size, (kept[i] + 1) * size);
}

template <class R>
void weigh(const ChooseSettings& set, const R* logits, const int32_t* idx, R* probs) {
  const int64_t k = set.top_k;
  const R scale = static_cast<R>(set.scale);
  switch (set.weighting()) {
    case Weighting::ChosenSoftmax: {
      R picked[kMaxExperts];
      for (int64_t i = 0; i < k; ++i) picked[i] = logits[idx[i]];
      row_softmax(picked, k, probs);
      break;
    }
    case Weighting::FullSoftmax: {
      R all[kMaxExperts];
      row_softmax(logits, set.experts, all);
      for (int64_t i = 0; i < k; ++i) probs[i] = all[idx[i]];
      break;
    }
    case Weighting::Point: {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        probs[i] = point_score(set.point(), logits[idx[i]]);
        sum += static_cast<double>(probs[i]);
      }
      if (set.divides())
        for (int64_t i = 0; i < k; ++i)
          probs[i] = static_cast<R>(static_cast<double>(probs[i]) / (sum + 1e-20));
    }
  }
  for (int64_t i = 0; i < k; ++i) probs[i] *= scale;
}

void check_given(const int32_t* given, int64_t num_tokens, int64_t top_k, int64_t experts) {
  for (int64_t t = 0; t < num_tokens; ++t)
    for (int64_t i = 0; i < top_k; ++i) {
      const int32_t expert = given[t * top_k + i];
      if (expert < 0 || expert >= experts || (i > 0 && expert <= given[t * top_k + i - 1]))
        base::fail(
            "[router_choose] stored routing of token {} has expert {} in slot {}; needed ascending experts "
            "below {}",
            t, expert, i, experts);
    }
}

template <class R>
struct Forward {
  static void run(const Invocation& call) {
    const signature::router_choose::Forward<Arg> args(call.args);
    const ChooseSettings set(call);
    const R* logits = args.logits.as<R>();
    const float* bias = args.expert_bias.as<float>();
    const uint8_t* valid = args.valid.as<uint8_t>();
    const int32_t* given = args.given.as<int32_t>();
    int32_t* idx = args.idx.as<int32_t>();
    R* probs = args.probs.as<R>();
    int64_t* load = args.load.as<int64_t>();
    const int64_t T = args.logits.dim(0), E = set.experts, k = set.top_k;
    if (given) check_given(given, T, k, E);
    if (args.load.into() == Into::Overwrite) std::fill_n(load, E, int64_t{0});
    const R* balanced = nullptr;
    if (set.balances_keys() && !given) {
      sinkhorn_keys<R>(*call.pool, logits, valid, T, E, args.scratch.as<R>());
      balanced = args.scratch.as<R>();
    }
    struct Partial {
      double largest = 0, squares = 0;
      int64_t tokens = 0;
    } partial[kMaxTiles];
    const TokenTiles tiles(T);
    call.pool->for_each_tile(tiles.num_tiles, [&](int64_t tile) {
      TopK<R> chosen(k);
      R keys[kMaxExperts];
      int64_t counts[kMaxExperts];
      std::fill_n(counts, E, int64_t{0});
      Partial& mine = partial[tile];
      for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        const R* row = logits + t * E;
        if (given) {
          std::copy_n(given + t * k, k, idx + t * k);
        } else {
          const R* by = balanced ? balanced + t * E : choice_keys(set, row, bias, keys);
          if (set.grouped()) {
            chosen.reset();
            choose_in_groups(set, by, chosen);
            chosen.ascending(idx + t * k);
          } else {
            choose_top(by, E, k, chosen, idx + t * k);
          }
        }
        weigh(set, row, idx + t * k, probs + t * k);
        if (!valid[t]) continue;
        ++mine.tokens;
        for (int64_t i = 0; i < k; ++i) ++counts[idx[t * k + i]];
        for (int64_t e = 0; e < E; ++e) {
          const double x = static_cast<double>(row[e]);
          mine.largest = std::abs(x) > mine.largest ? std::abs(x) : mine.largest;
          mine.squares += x * x;
        }
      }
      for (int64_t e = 0; e < E; ++e) add_counter(load[e], counts[e]);
    });
    double* stats = args.stats.as<double>();
    if (args.stats.into() == Into::Overwrite) std::fill_n(stats, 4, 0.0);
    for (int64_t tile = 0; tile < tiles.num_tiles; ++tile) {
      stats[0] = std::max(stats[0], partial[tile].largest);
      stats[1] += partial[tile].squares;
      stats[2] += static_cast<double>(partial[tile].tokens * E);
    }
  }
};

template <class R>
struct BackwardInput {
  // Gradients of the k chosen logits where no other logit takes part.
  static void chosen_softmax(const ChooseSettings& set, const R* row, const int32_t* idx, const R* dp, R* d) {
    R picked[kMaxExperts];
    for (int64_t i = 0; i < set.top_k; ++i) picked[i] = row[idx[i]];
    row_softmax(picked, set.top_k, d);
    double dot = 0;
    for (int64_t i = 0; i < set.top_k; ++i) dot += static_cast<double>(dp[i]) * static_cast<double>(d[i]);
    for (int64_t i = 0; i < set.top_k; ++i)
      d[i] = static_cast<R>(set.scale * static_cast<double>(d[i]) * (static_cast<double>(dp[i]) - dot));
  }

  static void point(const ChooseSettings& set, const R* row, const int32_t* idx, const R* dp, R* d) {
    const int64_t k = set.top_k;
    double sum = 1e-20, dot = 0;
    for (int64_t i = 0; i < k; ++i) {
      d[i] = point_score(set.point(), row[idx[i]]);
      sum += static_cast<double>(d[i]);
      dot += static_cast<double>(dp[i]) * static_cast<double>(d[i]);
    }
    for (int64_t i = 0; i < k; ++i) {
      const double through =
          set.divides() ? (static_cast<double>(dp[i]) - dot / sum) / sum : static_cast<double>(dp[i]);
      d[i] = static_cast<R>(set.scale * through *
                            static_cast<double>(point_slope(set.point(), row[idx[i]], d[i])));
    }
  }

  static void run(const Invocation& call) {
    const signature::router_choose::BackwardInput<Arg> args(call.args);
    const ChooseSettings set(call);
    const R *dprobs = args.dprobs.as<R>(), *logits = args.logits.as<R>();
    const int32_t* idx = args.idx.as<int32_t>();
    R* dlogits = args.dlogits.as<R>();
    const bool add = args.dlogits.into() == Into::Accumulate;
    const int64_t E = set.experts, k = set.top_k;
    const TokenTiles tiles(args.logits.dim(0));
    call.pool->for_each_tile(tiles.num_tiles, [&](int64_t tile) {
      R d[kMaxExperts];
      for (int64_t t = tiles.begin(tile); t < tiles.end(tile); ++t) {
        const R *row = logits + t * E, *dp = dprobs + t * k;
        const int32_t* at = idx + t * k;
        R* out = dlogits + t * E;
        if (!add) std::fill_n(out, E, R(0));
        if (set.weighting() == Weighting::FullSoftmax) {
          row_softmax(row, E, d);
          double dot = 0;
          for (int64_t i = 0; i < k; ++i) dot += static_cast<double>(dp[i]) * static_cast<double>(d[at[i]]);
          const R through_sum = static_cast<R>(-set.scale * dot), scale = static_cast<R>(set.scale);
          for (int64_t i = 0; i < k; ++i) out[at[i]] += scale * dp[i] * d[at[i]];
          for (int64_t e = 0; e < E; ++e) out[e] += through_sum * d[e];
          continue;
        }
        if (set.weighting() == Weighting::ChosenSoftmax) {
          chosen_softmax(set, row, at, dp, d);
        } else {
          point(set, row, at, dp, d);
        }
        for (int64_t i = 0; i < k; ++i) out[at[i]] += d[i];
      }
    });
  }
};

constexpr Binding kTable[] = {
    row<signature::router_choose::Forward, Forward>([](const auto& a) { return a.logits.dtype; }),
    row<signature::router_choose::BackwardInput, BackwardInput>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> router_choose_bindings() { return kTable; }

}  // namespace pleat::kernels
