// What comes after: sequences that grow token by token, and the logits of whatever follows each of them.
//
// Two ways to the same numbers (to rounding): over a cache, and by running the whole sequences anew.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "infer/inference.h"

namespace pleat::infer {

class NextToken {
 public:
  virtual ~NextToken() = default;

  // Appends tokens[b] (may be empty) to sequence b, for all sequences at once. Throws when an id is outside
  // the vocabulary or a sequence would grow beyond the maximum, before anything has changed.
  void append(const std::vector<std::vector<int32_t>>& tokens);
  // Of the last token of sequence b; it must have one.
  const std::vector<double>& logits(int64_t b) const { return logits_[static_cast<size_t>(b)]; }
  int64_t length(int64_t b) const { return lengths_[static_cast<size_t>(b)]; }
  int64_t num_sequences() const { return model_.choice().num_sequences; }
  int64_t max_length() const { return model_.choice().max_length; }
  // All sequences become empty.
  virtual void clear();

  // Sees the logits of every position that is computed anyway: tests compare them.
  std::function<void(int64_t b, int64_t position, std::span<const double> logits)> each_row;

 protected:
  explicit NextToken(Inference& model);
  virtual void extend(const std::vector<std::vector<int32_t>>& tokens) = 0;
  // Row `row` of the executor's logits, as double.

  Inference& model_;
  std::vector<int64_t> lengths_;
  std::vector<std::vector<double>> logits_;
};

// Over the cache: `model` must hold the decode program (and the prefill program, unless prompts are to go in
// token by token).
std::unique_ptr<NextToken> make_cached(Inference& model);
// Whole sequences every time: `model` must hold whole_sequences.
std::unique_ptr<NextToken> make_recomputed(Inference& model);
// The one of these two that `model` was made for.
std::unique_ptr<NextToken> make_next_token(Inference& model);

}  // namespace pleat::infer
