// How likely a model finds given tokens: log-likelihoods of continuations, and the perplexity of documents.
//
// Requests of any length are packed back to back into the score program's rows; documents see only
// themselves, so a request's numbers do not depend on its neighbours (up to rounding).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "infer/inference.h"

namespace pleat::infer {

// tokens[first_scored ...] are scored, each given all tokens before it. 1 <= first_scored <= tokens.size().
struct ScoreRequest {
  std::vector<int32_t> tokens;
  int64_t first_scored = 1;
  std::vector<uint8_t> counts = {};  // as long as tokens: of those scored, which count; empty: all
  int64_t num_scored() const { return static_cast<int64_t>(tokens.size()) - first_scored; }
  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()) - 1; }  // of the program
  bool is_scored(int64_t t) const {
    return t >= first_scored && (counts.empty() || counts[static_cast<size_t>(t)]);
  }
};

struct Score {
  double log_likelihood = 0;  // nats
  bool is_greedy = true;      // every scored token was the most likely one
  int64_t num_tokens = 0;
};

// `model` must hold the score program; no request may have more rows than it. Scores in the order of the
// requests. `progress` sees how many requests are done.
std::vector<Score> score(Inference& model, std::span<const ScoreRequest> requests,
                         const std::function<void(int64_t done)>& progress = {});

// A document as windows of at most `seq_len` input tokens that start `stride` apart, 1 <= stride <= seq_len:
// every token but the first is scored exactly once, in the first window that reaches it, given at least
// seq_len - stride tokens before it where there are as many. stride = seq_len: disjoint windows.
// full_last: the last window starts earlier where needed to have seq_len tokens, as lm-evaluation-harness's
// loglikelihood_rolling does.
void for_each_window(std::span<const int32_t> document, int64_t seq_len, int64_t stride, bool full_last,
                     const std::function<void(ScoreRequest&&)>& each);

// Sums over documents; memory is a few batches.
class PerplexityMeter {
 public:
  PerplexityMeter(Inference& model, int64_t seq_len, int64_t stride);
  // The first token of a document is context only. `loss_mask`, as long as the document: which tokens count; empty:
  // all. `progress` sees, now and then, how many of the document's tokens are done.
  void add(std::span<const int32_t> document, std::span<const uint8_t> loss_mask = {},
           const std::function<void(int64_t tokens)>& progress = {});
  // Of everything added that counts.
  Score total();
  int64_t num_documents() const { return num_documents_; }
  // Tokens that have one before them, whether or not they count.
  int64_t num_tokens() const { return num_tokens_; }

 private:
  void flush();
  Inference& model_;
  int64_t seq_len_, stride_, num_documents_ = 0, num_tokens_ = 0, waiting_rows_ = 0;
  std::vector<ScoreRequest> waiting_;
  Score total_;
};

}  // namespace pleat::infer
