#include "infer/next_token.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/logits.h"

namespace pleat::infer {
namespace {

using Tokens = std::vector<std::vector<int32_t>>;

// The inputs every forward-only program has, of one row.
class Rows {
 public:
  explicit Rows(interpret::Executor& e)
      : tokens_(e.at(program::step::tokens, 0).data()),
        positions_(e.at(program::step::positions, 0).data()),
        doc_start_(e.at(program::step::doc_start, 0).data()),
        valid_(e.at(program::step::valid, 0).data()),
        token_index_(e.at(program::step::token_index, 0).data()) {}

  void write(int64_t row, int32_t token, int64_t position, int64_t first_row, bool real) {
    tokens_[row] = token;
    positions_[row] = static_cast<int32_t>(position);
    doc_start_[row] = static_cast<int32_t>(first_row);
    valid_[row] = real;
    token_index_[row] = row;
  }

 private:
  int32_t *tokens_, *positions_, *doc_start_;
  uint8_t* valid_;
  int64_t* token_index_;
};

class Cached final : public NextToken {
 public:
  explicit Cached(Inference& model) : NextToken(model) {
    PLEAT_CHECK(model.decode(), "this model holds no decode program");
  }

 private:
  void extend(const Tokens& tokens) override {
    size_t longest = 0;
    for (const auto& t : tokens) longest = std::max(longest, t.size());
    for (size_t begin = 0; begin < longest;) {
      const bool one = longest - begin == 1 || !model_.prefill();
      const int64_t rows = one ? 1 : std::min(model_.choice().prefill_rows, model_.choice().max_length);
      step(one ? *model_.decode() : *model_.prefill(), tokens, begin, rows);
      begin += static_cast<size_t>(rows);
    }
  }

  // Tokens [begin, begin + rows) of every sequence that has them.
  void step(interpret::Executor& e, const Tokens& tokens, size_t begin, int64_t rows) {
    auto* lengths = e.at(program::step::lengths).data();
    auto* num_new = e.at(program::step::num_new).data();
    const bool all = model_.choice().all_logits;
    auto* wanted = rows > 1 && !all ? e.at(program::step::logit_rows).data() : nullptr;
    Rows write(e);
    const auto count = [&](int64_t b) {
      return std::clamp<int64_t>(int64_t(tokens[size_t(b)].size()) - int64_t(begin), 0, rows);
    };
    for (int64_t b = 0; b < num_sequences(); ++b) {
      const std::vector<int32_t>& t = tokens[size_t(b)];
      const int64_t n = count(b);
      lengths[b] = static_cast<int32_t>(lengths_[size_t(b)]);
      num_new[b] = static_cast<int32_t>(n);
      if (wanted) wanted[b] = static_cast<int32_t>(b * rows + std::max<int64_t>(n - 1, 0));
      for (int64_t i = 0; i < rows; ++i)
        write.write(b * rows + i, i < n ? t[begin + size_t(i)] : 0, i < n ? lengths[b] + i : 0, b * rows,
                    i < n);
    }
    e.run();  // inputs are dead now: their memory may have been used again
    std::vector<double> row;
    for (int64_t b = 0; b < num_sequences(); ++b) {
      const int64_t n = count(b);
      if (n == 0) continue;
      if (all && each_row)
        for (int64_t i = 0; i < n; ++i) {
          runtime::read_logits(e, b * rows + i, row);
          each_row(b, lengths_[size_t(b)] + i, row);
        }
      lengths_[size_t(b)] += n;
      // The last token of a longer prompt is still to come.
      if (begin + size_t(n) == tokens[size_t(b)].size())
        runtime::read_logits(e, wanted ? b : b * rows + n - 1, logits_[size_t(b)]);
    }
  }
};

class Recomputed final : public NextToken {
 public:
  explicit Recomputed(Inference& model) : NextToken(model), tokens_(size_t(num_sequences())) {
    PLEAT_CHECK(model.whole(), "this model holds no program for whole sequences");
  }
  void clear() override {
    NextToken::clear();
    for (auto& t : tokens_) t.clear();
  }

 private:
  void extend(const Tokens& tokens) override {
    interpret::Executor& e = *model_.whole();
    const int64_t L = max_length();
    Rows write(e);
    for (int64_t b = 0; b < num_sequences(); ++b) {
      auto& t = tokens_[size_t(b)];
      t.insert(t.end(), tokens[size_t(b)].begin(), tokens[size_t(b)].end());
      const int64_t n = static_cast<int64_t>(t.size());
      // Padding is a document per row: nothing sees it.
      for (int64_t i = 0; i < L; ++i)
        write.write(b * L + i, i < n ? t[size_t(i)] : 0, i < n ? i : 0, i < n ? b * L : b * L + i, i < n);
    }
    e.run();
    std::vector<double> row;
    for (int64_t b = 0; b < num_sequences(); ++b) {
      const int64_t n = static_cast<int64_t>(tokens_[size_t(b)].size());
      for (int64_t i = lengths_[size_t(b)]; each_row && i < n; ++i) {
        runtime::read_logits(e, b * L + i, row);
        each_row(b, i, row);
      }
      lengths_[size_t(b)] = n;
      if (n > 0) runtime::read_logits(e, b * L + n - 1, logits_[size_t(b)]);
    }
  }

  Tokens tokens_;
};

}  // namespace

NextToken::NextToken(Inference& model)
    : model_(model),
      lengths_(static_cast<size_t>(model.choice().num_sequences), 0),
      logits_(static_cast<size_t>(model.choice().num_sequences)) {}

void NextToken::clear() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
  for (auto& row : logits_) row.clear();
}

void NextToken::append(const std::vector<std::vector<int32_t>>& tokens) {
  PLEAT_CHECK(static_cast<int64_t>(tokens.size()) == num_sequences(), "{} lists for {} sequences",
              tokens.size(), num_sequences());
  const int64_t vocab = model_.config().model.vocab_size;
  for (size_t b = 0; b < tokens.size(); ++b) {
    const int64_t grown = lengths_[b] + static_cast<int64_t>(tokens[b].size());
    if (grown > max_length())
      base::fail("sequence {} would grow to {} tokens, the maximum is {}", b, grown, max_length());
    for (int32_t t : tokens[b])
      if (t < 0 || t >= vocab) base::fail("token {} is outside the vocabulary of {}", t, vocab);
  }
  extend(tokens);
}

std::unique_ptr<NextToken> make_cached(Inference& model) { return std::make_unique<Cached>(model); }
std::unique_ptr<NextToken> make_recomputed(Inference& model) { return std::make_unique<Recomputed>(model); }
std::unique_ptr<NextToken> make_next_token(Inference& model) {
  return model.whole() ? make_recomputed(model) : make_cached(model);
}

}  // namespace pleat::infer
