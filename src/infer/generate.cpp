#include "infer/generate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"

namespace pleat::infer {
namespace {

// Ids by falling logit, put in order only as far as they are looked at: a vocabulary is long, and nearly all
// draws end within its first few tokens.
class ByLikelihood {
 public:
  explicit ByLikelihood(const std::vector<double>& logits) : logits_(logits), ids_(logits.size()) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }
  int32_t operator[](size_t i) {
    if (i >= sorted_) {
      const size_t next = std::min(ids_.size(), std::max<size_t>(i + 1, std::max<size_t>(64, 4 * sorted_)));
      const auto at = [&](size_t n) { return ids_.begin() + static_cast<std::ptrdiff_t>(n); };
      const auto before = [this](int32_t a, int32_t b) {
        const double x = logits_[size_t(a)], y = logits_[size_t(b)];
        return x != y ? x > y : a < b;
      };
      if (next < ids_.size()) std::nth_element(at(sorted_), at(next), ids_.end(), before);
      std::sort(at(sorted_), at(next), before);
      sorted_ = next;
    }
    return ids_[i];
  }

 private:
  const std::vector<double>& logits_;
  std::vector<int32_t> ids_;
  size_t sorted_ = 0;
};

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void check_sampling(const GenerateOptions& o) {
  if (!(o.temperature >= 0) || !(o.top_p > 0 && o.top_p <= 1) || o.top_k < 0)
    base::fail("temperature and top-k must be >= 0 (got {} and {}) and top-p in (0, 1] (got {})",
               o.temperature, o.top_k, o.top_p);
}

int32_t choose_token(const std::vector<double>& logits, const GenerateOptions& o, double uniform) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (std::isnan(logits[i])) base::fail("the model's logit of token {} is not a number", i);
  const size_t best = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (o.temperature == 0) return static_cast<int32_t>(best);
  const auto weight = [&](double logit) { return std::exp((logit - logits[best]) / o.temperature); };
  ByLikelihood order(logits);
  const size_t limit = o.top_k > 0 ? std::min(logits.size(), size_t(o.top_k)) : logits.size();
  double sum = 0;
  if (limit == logits.size())
    for (double x : logits) sum += weight(x);
  else
    for (size_t i = 0; i < limit; ++i) sum += weight(logits[size_t(order[i])]);
  if (o.top_p < 1) {
    double kept = 0;
    for (size_t i = 0; i < limit && kept < o.top_p * sum; ++i) kept += weight(logits[size_t(order[i])]);
    sum = kept;
  }
  // What rounding leaves over goes to the last token that was kept.
  int32_t last = order[0];
  double left = uniform * sum, kept = 0;
  for (size_t i = 0; i < limit && kept < sum; ++i) {
    const double p = weight(logits[size_t(order[i])]);
    if (p == 0) break;
    last = order[i];
    kept += p;
    if ((left -= p) < 0) return last;
  }
  return last;
}

std::vector<Generation> generate(NextToken& model, const std::vector<std::vector<int32_t>>& prompts,
                                 const GenerateOptions& o, uint32_t first_index, const EachToken& each,
                                 GenerateTimes* times) {
  check_sampling(o);
  for (const auto& prompt : prompts)
    if (prompt.empty()) base::fail("generation needs a prompt of at least one token");
  PLEAT_CHECK(static_cast<int64_t>(prompts.size()) <= model.num_sequences(), "{} prompts for {} sequences",
              prompts.size(), model.num_sequences());
  std::vector<Generation> out(prompts.size());
  std::vector<std::vector<int32_t>> next = prompts;
  next.resize(static_cast<size_t>(model.num_sequences()));
  std::vector<char> open(prompts.size(), 1);
  model.clear();
  double start = seconds();
  model.append(next);
  if (times) {
    times->prefill_seconds += seconds() - start;
    for (const auto& p : prompts) times->prompt_tokens += static_cast<int64_t>(p.size());
  }
  start = seconds();
  for (int64_t i = 0; i < o.max_tokens; ++i) {
    bool any = false;
    for (size_t p = 0; p < prompts.size(); ++p) {
      next[p].clear();
      if (!open[p]) continue;
      const base::RandomStream random(static_cast<uint64_t>(o.seed), base::RandomUse::Sample, 0,
                                      first_index + static_cast<uint32_t>(p));
      const int32_t token =
          choose_token(model.logits(static_cast<int64_t>(p)), o, random.uniform(static_cast<uint64_t>(i)));
      if (std::find(o.stop_tokens.begin(), o.stop_tokens.end(), token) != o.stop_tokens.end()) {
        out[p].finish = Finish::StopToken;
        open[p] = 0;
        continue;
      }
      out[p].tokens.push_back(token);
      if (times) ++times->new_tokens;
      if (each && !each(p, token)) {
        out[p].finish = Finish::Stopped;
        open[p] = 0;
      } else if (model.length(static_cast<int64_t>(p)) == model.max_length()) {
        open[p] = 0;
      } else {
        next[p] = {token};
        any = true;
      }
    }
    if (!any || i + 1 == o.max_tokens) break;
    model.append(next);
  }
  if (times) times->decode_seconds += seconds() - start;
  return out;
}

}  // namespace pleat::infer
