#include "infer/evaluate.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace pleat::infer {

namespace step = program::step;

namespace {

// One run of the score program over the requests in `batch`.
void run_batch(interpret::Executor& e, int64_t num_rows, std::span<const ScoreRequest> requests,
               std::span<const size_t> batch, std::vector<Score>& out) {
  int32_t *tokens = e.at(step::tokens, 0).data(), *labels = e.at(step::labels, 0).data(),
          *positions = e.at(step::positions, 0).data(), *doc_start = e.at(step::doc_start, 0).data();
  uint8_t *mask = e.at(step::loss_mask, 0).data(), *valid = e.at(step::valid, 0).data();
  int64_t* token_index = e.at(step::token_index, 0).data();
  int64_t row = 0;
  for (size_t i : batch) {
    const ScoreRequest& r = requests[i];
    const int64_t begin = row;
    for (int64_t t = 0; t < r.num_rows(); ++t, ++row) {
      tokens[row] = r.tokens[size_t(t)];
      labels[row] = r.tokens[size_t(t) + 1];
      mask[row] = r.is_scored(t + 1);
      positions[row] = static_cast<int32_t>(t);
      doc_start[row] = static_cast<int32_t>(begin);
      valid[row] = 1;
      token_index[row] = row;
    }
  }
  for (; row < num_rows; ++row) {
    tokens[row] = labels[row] = positions[row] = 0;
    mask[row] = valid[row] = 0;
    doc_start[row] = static_cast<int32_t>(row);
    token_index[row] = row;
  }
  e.run();
  const double* log_prob = e.at(step::log_prob).data();
  const int32_t* best = e.at(step::best).data();
  row = 0;
  for (size_t i : batch) {
    const ScoreRequest& r = requests[i];
    Score& s = out[i];
    for (int64_t t = 0; t < r.num_rows(); ++t, ++row) {
      if (!r.is_scored(t + 1)) continue;
      ++s.num_tokens;
      s.log_likelihood += log_prob[row];
      s.is_greedy &= best[row] == r.tokens[size_t(t) + 1];
    }
  }
}

}  // namespace

std::vector<Score> score(Inference& model, std::span<const ScoreRequest> requests,
                         const std::function<void(int64_t)>& progress) {
  PLEAT_CHECK(model.score(), "this model holds no score program");
  const int64_t num_rows = model.choice().score_tokens, vocab = model.config().model.vocab_size;
  for (size_t i = 0; i < requests.size(); ++i) {
    const ScoreRequest& r = requests[i];
    if (r.tokens.empty() || r.first_scored < 1 || r.num_scored() < 0)
      base::fail("request {} scores tokens {} to {}; at least one token must come before", i, r.first_scored,
                 r.tokens.size());
    PLEAT_CHECK(r.counts.empty() || r.counts.size() == r.tokens.size(), "request {}: {} marks for {} tokens",
                i, r.counts.size(), r.tokens.size());
    if (r.num_rows() > num_rows)
      base::fail("request {} has {} tokens, the maximum is {}", i, r.tokens.size(), num_rows + 1);
    for (int32_t t : r.tokens)
      if (t < 0 || t >= vocab)
        base::fail("request {}: token {} is outside the vocabulary of {}", i, t, vocab);
  }
  // Long ones first: the short ones fill what they leave.
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return requests[a].num_rows() > requests[b].num_rows(); });
  std::vector<Score> out(requests.size());
  std::vector<size_t> batch;
  std::vector<char> taken(order.size(), 0);
  int64_t done = 0;
  for (size_t first = 0; first < order.size();) {
    batch.clear();
    int64_t rows = 0;
    for (size_t i = first; i < order.size() && rows < num_rows; ++i) {
      if (taken[i] || rows + requests[order[i]].num_rows() > num_rows) continue;
      rows += requests[order[i]].num_rows();
      batch.push_back(order[i]);
      taken[i] = 1;
    }
    while (first < order.size() && taken[first]) ++first;
    if (rows > 0) run_batch(*model.score(), num_rows, requests, batch, out);
    done += static_cast<int64_t>(batch.size());
    if (progress) progress(done);
  }
  return out;
}

void for_each_window(std::span<const int32_t> document, int64_t seq_len, int64_t stride, bool full_last,
                     const std::function<void(ScoreRequest&&)>& each) {
  if (seq_len < 1 || stride < 1 || stride > seq_len)
    base::fail("windows of {} tokens with stride {}: needed 1 <= stride <= length", seq_len, stride);
  const int64_t last = static_cast<int64_t>(document.size()) - 1;  // the last token that is scored
  int64_t scored = 0;                                              // so far: tokens 1 .. scored
  for (int64_t begin = 0; scored < last; begin += stride) {
    const int64_t end = std::min(begin + seq_len, last);
    if (end <= scored) continue;
    const int64_t from = full_last && end == last ? std::max<int64_t>(0, last - seq_len) : begin;
    ScoreRequest r;
    r.tokens.assign(document.begin() + from, document.begin() + end + 1);
    r.first_scored = scored + 1 - from;
    scored = end;
    each(std::move(r));
  }
}

PerplexityMeter::PerplexityMeter(Inference& model, int64_t seq_len, int64_t stride)
    : model_(model), seq_len_(seq_len), stride_(stride) {
  for_each_window({}, seq_len, stride, false, {});  // throws where these make no sense
}

void PerplexityMeter::add(std::span<const int32_t> document, std::span<const uint8_t> loss_mask,
                          const std::function<void(int64_t)>& progress) {
  PLEAT_CHECK(loss_mask.empty() || loss_mask.size() == document.size(), "{} marks for {} tokens",
              loss_mask.size(), document.size());
  ++num_documents_;
  int64_t tokens = 0;  // scored so far: tokens 1 .. tokens
  for_each_window(document, seq_len_, stride_, false, [&](ScoreRequest&& r) {
    const int64_t from = tokens + 1 - r.first_scored;
    tokens += r.num_scored();
    num_tokens_ += r.num_scored();
    if (!loss_mask.empty()) {
      r.counts.assign(loss_mask.begin() + from,
                      loss_mask.begin() + from + static_cast<int64_t>(r.tokens.size()));
      if (std::find(r.counts.begin() + r.first_scored, r.counts.end(), 1) == r.counts.end()) return;
    }
    waiting_rows_ += r.num_rows();
    waiting_.push_back(std::move(r));
    if (waiting_rows_ < 8 * model_.choice().score_tokens) return;
    flush();
    if (progress) progress(tokens);
  });
}

void PerplexityMeter::flush() {
  for (const Score& s : score(model_, waiting_)) {
    total_.log_likelihood += s.log_likelihood;
    total_.is_greedy &= s.is_greedy;
    total_.num_tokens += s.num_tokens;
  }
  waiting_.clear();
  waiting_rows_ = 0;
}

Score PerplexityMeter::total() {
  flush();
  return total_;
}

}  // namespace pleat::infer
