#include "bench/case_shapes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace pleat::bench {
namespace {

using program::Access;
using tensor::Dtype;

constexpr Model kModels[] = {
    {"mixtral", 8192, 4096, 8, 2, 14336, 32, 8, 128, 128, 32000, Model::Norm::None},
    {"deepseek-v3", 8192, 7168, 32, 8, 2048, 128, 128, 192, 128, 32768, Model::Norm::None},
    {"qwen3-30b-a3b", 16384, 2048, 128, 8, 768, 32, 4, 128, 128, 32768, Model::Norm::Head},
    {"olmoe-1b-7b", 4096, 2048, 64, 8, 1024, 16, 16, 128, 128, 50304, Model::Norm::Full},
};

// The experts of every token, ascending.
std::vector<std::vector<size_t>> random_choices(const Model& m, int64_t tokens) {
  const base::RandomStream random(3, base::RandomUse::Test, 0, 0);
  const auto experts = static_cast<size_t>(m.experts), top_k = static_cast<size_t>(m.top_k);
  std::vector<double> bias(experts);
  for (size_t e = 0; e < experts; ++e) bias[e] = 0.3 * random.normal(e);
  std::vector<std::pair<double, size_t>> score(experts);
  std::vector<std::vector<size_t>> out(static_cast<size_t>(tokens));
  for (size_t t = 0; t < out.size(); ++t) {
    for (size_t e = 0; e < experts; ++e) score[e] = {-(bias[e] + random.normal((t + 1) * experts + e)), e};
    std::partial_sort(score.begin(), score.begin() + m.top_k, score.end());
    for (size_t k = 0; k < top_k; ++k) out[t].push_back(score[k].second);
    std::sort(out[t].begin(), out[t].end());
  }
  return out;
}

std::vector<double> sums_of(const std::vector<int64_t>& counts) {
  std::vector<double> at = {0};
  for (int64_t n : counts) at.push_back(at.back() + static_cast<double>(n));
  return at;
}

Routing random_routing(const Model& m, int64_t tokens) {
  const auto choices = random_choices(m, tokens);
  std::vector<int64_t> count(static_cast<size_t>(m.experts));
  Routing out;
  for (const auto& of_token : choices)
    for (size_t e : of_token) {
      ++count[e];
      out.idx.push_back(static_cast<double>(e));
    }
  out.offsets = sums_of(count);
  out.row_token.resize(out.idx.size());
  out.row_slot = out.token_row = out.row_token;
  std::vector<double> next = out.offsets;
  for (size_t t = 0; t < choices.size(); ++t)
    for (size_t s = 0; s < choices[t].size(); ++s) {
      const double row = next[choices[t][s]]++;
      out.row_token[static_cast<size_t>(row)] = static_cast<double>(t);
      out.row_slot[static_cast<size_t>(row)] = static_cast<double>(s);
      out.token_row[t * choices[t].size() + s] = row;
    }
  return out;
}

}  // namespace

std::span<const Model> models() { return kModels; }

std::vector<int64_t> token_counts(const Model& m) {
  std::vector<int64_t> counts = {4096, m.tokens, 32768};
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

Argument in(Dtype dtype, std::vector<int64_t> shape, std::vector<double> numbers) {
  return {dtype, std::move(shape), Access::Read, std::move(numbers), true};
}
Argument out(Dtype dtype, std::vector<int64_t> shape) {
  return {dtype, std::move(shape), Access::Write, {}, true};
}
Argument update(Dtype dtype, std::vector<int64_t> shape) {
  return {dtype, std::move(shape), Access::Update, {}, true};
}
Argument none() { return {Dtype::BF16, {0}, Access::Read, {}, false}; }

Routing routing_of(const Model& m, int64_t tokens, Load load) {
  if (load == Load::Random) return random_routing(m, tokens);
  const int64_t rows = tokens * m.top_k;
  std::vector<int64_t> count(static_cast<size_t>(m.experts), rows / m.experts);
  if (load == Load::Skewed) {
    const int64_t most = std::min(tokens, 4 * rows / m.experts), rest = (rows - most) / (m.experts - 1);
    std::fill(count.begin(), count.end(), rest);
    count[0] = most;
  }
  if (load == Load::Uneven) {
    const base::RandomStream random(5, base::RandomUse::Test, 0, 0);
    std::vector<double> share(count.size());
    for (size_t e = 0; e < share.size(); ++e) share[e] = std::exp(0.85 * random.normal(e));
    const double sum = std::accumulate(share.begin(), share.end(), 0.0);
    for (size_t e = 0; e < share.size(); ++e)
      count[e] = static_cast<int64_t>(static_cast<double>(rows) * share[e] / sum);
  }
  Routing out;
  out.offsets = sums_of(count);
  out.offsets.back() = static_cast<double>(rows);
  return out;
}

}  // namespace pleat::bench
