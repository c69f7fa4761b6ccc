#include "cost/load.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/rng.h"

namespace pleat::cost {

double rank_imbalance(std::span<const double> expert_load, int64_t ep) {
  const size_t each = expert_load.size() / static_cast<size_t>(ep);
  double all = 0, most = 0;
  for (size_t r = 0; r < static_cast<size_t>(ep); ++r) {
    double sum = 0;
    for (size_t e = r * each; e < (r + 1) * each; ++e) sum += expert_load[e];
    all += sum, most = std::max(most, sum);
  }
  return all > 0 ? most * static_cast<double>(ep) / all : 1;
}

std::vector<double> falling_loads(double max_over_mean, int64_t num_experts) {
  const double n = static_cast<double>(num_experts);
  if (!(max_over_mean >= 1 && max_over_mean <= n))
    base::fail("the fullest expert has {:g} times the mean; of {} experts it can have 1 to {} times",
               max_over_mean, num_experts, num_experts);
  const auto loads = [&](double fall) {
    std::vector<double> out(static_cast<size_t>(num_experts));
    double sum = 0, at = 1;
    for (double& v : out) v = at, sum += at, at *= fall;
    for (double& v : out) v *= n / sum;
    return out;
  };
  double low = 0, high = 1;  // the factor from one expert to the next; 1 is even
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (loads(middle).front() > max_over_mean ? low : high) = middle;
  }
  return loads(high);
}

RankLoad drawn_load(double max_over_mean, int64_t num_experts, int64_t ep, uint64_t seed) {
  const auto loads = std::make_shared<const std::vector<double>>(falling_loads(max_over_mean, num_experts));
  const auto known = std::make_shared<std::map<std::pair<int, int>, double>>();
  return [=](int layer, int microbatch) {
    const auto [at, fresh] = known->try_emplace({layer, microbatch}, 1.0);
    if (!fresh) return at->second;
    std::vector<double> order = *loads;
    const base::RandomStream random(seed, base::RandomUse::Test, static_cast<uint32_t>(layer + 1),
                                    static_cast<uint32_t>(microbatch + 1));
    for (size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1],
                order[std::min(i - 1, static_cast<size_t>(random.uniform(i) * static_cast<double>(i)))]);
    at->second = rank_imbalance(order, ep);
    return at->second;
  };
}

RankLoad recorded_load(const std::map<int, std::vector<int64_t>>& loads, int64_t num_experts, int64_t ep) {
  const auto factors = std::make_shared<std::map<int, double>>();
  for (const auto& [layer, load] : loads) {
    if (static_cast<int64_t>(load.size()) != num_experts)
      base::fail("the recorded load of layer {} is of {} experts, the configuration has {}", layer,
                 load.size(), num_experts);
    const std::vector<double> numbers(load.begin(), load.end());
    (*factors)[layer] = rank_imbalance(numbers, ep);
  }
  return [=](int layer, int) {
    const auto at = factors->find(layer);
    return at == factors->end() ? 1.0 : at->second;
  };
}

}  // namespace pleat::cost
