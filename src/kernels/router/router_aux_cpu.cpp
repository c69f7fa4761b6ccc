// Auxiliary losses of one layer and microbatch. Every balance loss is linear in the scores once the counts
// are known, so all of them are one weight per expert (and document) on the scores, and one pass over the
// tokens.
#include <algorithm>
#include <cmath>

#include "kernels/router/aux_settings.h"
#include "kernels/router/document_counts.h"
#include "kernels/router/router.h"
#include "kernels/router/score.h"

namespace pleat::kernels {
namespace {

using namespace aux;

// Scores of one token that sum to 1, and what their gradient needs.
template <class R>
struct TokenScores {
  R s[kMaxExperts];
  R point[kMaxExperts];  // before the division, scores 1 and 2 only
  double sum = 1;

  void compute(Score score, const R* logits, int64_t E) {
    if (score == Score::Softmax) {
      row_softmax(logits, E, s);
      return;
    }
    sum = 1e-20;
    for (int64_t e = 0; e < E; ++e) {
      point[e] = point_score(score, logits[e]);
      sum += static_cast<double>(point[e]);
    }
    for (int64_t e = 0; e < E; ++e) s[e] = static_cast<R>(static_cast<double>(point[e]) / sum);
  }

  // dlogits += gradient of sum_e weight_e s_e.
  void backward(Score score, const R* logits, const R* weight, int64_t E, R* dlogits) const {
    double dot = 0;
    for (int64_t e = 0; e < E; ++e) dot += static_cast<double>(weight[e]) * static_cast<double>(s[e]);
    const R mean = static_cast<R>(dot);
    if (score == Score::Softmax) {
      for (int64_t e = 0; e < E; ++e) dlogits[e] += s[e] * (weight[e] - mean);
      return;
    }
    const R inverse = static_cast<R>(1 / sum);
    for (int64_t e = 0; e < E; ++e)
      dlogits[e] += (weight[e] - mean) * inverse * point_slope(score, logits[e], point[e]);
  }
};

// What a tile needs of the whole microbatch: weights per expert, before coefficients.
struct Weights {
  double micro[kMaxExperts], global[kMaxExperts];
};

template <class R>
struct Tile {
  const Settings& set;
  const R* logits;
  const uint8_t* valid;
  const double* norm;
  const Weights& weights;
  R* dlogits;
  double* losses;  // this tile's share, before coefficients

  // Tokens [begin, end) of one document.
  void balance(int64_t begin, int64_t end, const int32_t* counts, int64_t doc_tokens) const {
    const int64_t E = set.experts;
    const bool by_document = set.coef[kSequence] != 0 && doc_tokens > 0;
    const double document = by_document ? norm[2] * static_cast<double>(E) /
                                              (static_cast<double>(set.top_k) * std::pow(doc_tokens, 2))
                                        : 0;
    R weight[kMaxExperts];
    double column[kMaxExperts];
    for (int64_t e = 0; e < E; ++e) {
      double w = set.coef[kMicro] * weights.micro[e] + set.coef[kGlobal] * weights.global[e];
      if (by_document) w += set.coef[kSequence] * document * counts[e];
      weight[e] = static_cast<R>(w);
      column[e] = 0;
    }
    TokenScores<R> scores;
    for (int64_t t = begin; t < end; ++t) {
      if (!valid[t]) continue;
      scores.compute(set.score, logits + t * E, E);
      for (int64_t e = 0; e < E; ++e) column[e] += static_cast<double>(scores.s[e]);
      scores.backward(set.score, logits + t * E, weight, E, dlogits + t * E);
    }
    for (int64_t e = 0; e < E; ++e) {
      losses[kMicro] += weights.micro[e] * column[e];
      losses[kGlobal] += weights.global[e] * column[e];
      if (by_document) losses[kSequence] += document * counts[e] * column[e];
    }
  }

  void z_loss(int64_t begin, int64_t end) const {
    const int64_t E = set.experts;
    R s[kMaxExperts];
    for (int64_t t = begin; t < end; ++t) {
      if (!valid[t]) continue;
      const double lse = row_softmax(logits + t * E, E, s);
      losses[kZ] += norm[3] * lse * lse;
      const R slope = static_cast<R>(2 * set.coef[kZ] * norm[3] * lse);
      for (int64_t e = 0; e < E; ++e) dlogits[t * E + e] += slope * s[e];
    }
  }
};

template <class R>
struct BackwardInput {
  static void run(const Invocation& call) {
    const signature::router_aux::BackwardInput<Arg> args(call.args);
    const Settings set(call);
    const R* logits = args.logits.as<R>();
    const uint8_t* valid = args.valid.as<uint8_t>();
    const int32_t* doc_start = args.doc_start.as<int32_t>();
    const double* norm = args.norm.as<double>();
    const int64_t *given_counts = args.counts.as<int64_t>(), *given_tokens = args.tokens.as<int64_t>();
    R* dlogits = args.dlogits.as<R>();
    double* losses = args.losses.as<double>();
    const bool overwrite = args.dlogits.into() == Into::Overwrite;
    const int64_t T = args.logits.dim(0), E = set.experts;

    DocumentCounts<R> own(logits, valid, doc_start, T, E, set.top_k);
    if (set.needs_own_counts()) own.gather(*call.pool);
    Weights weights;
    std::fill_n(weights.micro, E, 0.0);
    std::fill_n(weights.global, E, 0.0);
    const double given = set.needs_given_counts() ? static_cast<double>(given_tokens[0]) : 0;
    if (set.coef[kMicro] != 0 && set.hf) {
      const int64_t num_valid = T - std::count(valid, valid + T, uint8_t{0});
      if (given_tokens[0] != set.num_layers * num_valid)
        base::fail_with(base::ExitCode::Internal,
                        "[router_aux] counts cover {} tokens, needed {} layers of {}", given_tokens[0],
                        set.num_layers, num_valid);
      const double factor = given > 0 ? norm[1] * static_cast<double>(E) / (given * given) : 0;
      for (int64_t e = 0; e < E; ++e) weights.micro[e] = factor * static_cast<double>(given_counts[e]);
    } else if (set.coef[kMicro] != 0 && own.num_valid() > 0) {
      const double tokens = static_cast<double>(own.num_valid());
      const double factor =
          norm[1] * static_cast<double>(E) / (static_cast<double>(set.top_k) * tokens * tokens);
      for (int64_t e = 0; e < E; ++e) weights.micro[e] = factor * static_cast<double>(own.counts()[e]);
    }
    if (set.coef[kGlobal] != 0 && given > 0) {
      const double factor = norm[3] * static_cast<double>(E) / (static_cast<double>(set.top_k) * given);
      for (int64_t e = 0; e < E; ++e) weights.global[e] = factor * static_cast<double>(given_counts[e]);
    }

    double partial[kMaxTiles][kNumLosses] = {};
    const TokenTiles& tiles = own.tiles();
    call.pool->for_each_tile(tiles.num_tiles, [&](int64_t tile) {
      const int64_t begin = tiles.begin(tile), end = tiles.end(tile);
      if (overwrite) std::fill(dlogits + begin * E, dlogits + end * E, R(0));
      const Tile<R> work{set, logits, valid, norm, weights, dlogits, partial[tile]};
      if (set.coef[kSequence] != 0) {
        int32_t room[kMaxExperts];
        for (int64_t t = begin; t < end;) {
          const auto document = own.document_at(tile, t, room);
          work.balance(t, document.end, document.counts, document.tokens);
          t = document.end;
        }
      } else if (set.balances()) {
        work.balance(begin, end, nullptr, 0);
      }
      if (set.coef[kZ] != 0) work.z_loss(begin, end);
    });
    if (args.losses.into() == Into::Overwrite) std::fill_n(losses, kNumLosses, 0.0);
    for (int64_t tile = 0; tile < tiles.num_tiles; ++tile)
      for (int i = 0; i < kNumLosses; ++i) losses[i] += partial[tile][i];
  }
};

constexpr Binding kTable[] = {
    row<signature::router_aux::BackwardInput, BackwardInput>([](const auto& a) { return a.logits.dtype; }),
};

}  // namespace

std::span<const Binding> router_aux_bindings() { return kTable; }

}  // namespace pleat::kernels
