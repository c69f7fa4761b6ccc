#include "exchange/golden_support.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <span>

#include "family/family.h"
#include "safetensors/convert.h"
#include "safetensors/model_folder.h"

namespace pleat::exchange::testing {

std::vector<double> numbers(const safetensors::File& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  std::vector<std::byte> raw(static_cast<size_t>(info.num_bytes()));
  file.read(name, raw);
  std::vector<double> out(static_cast<size_t>(info.num_elements()));
  safetensors::decode(info.type, raw, std::span<double>(out));
  return out;
}

std::vector<int32_t> integers(const safetensors::File& file, const std::string& name) {
  const safetensors::TensorInfo& info = file.at(name);
  EXPECT_EQ(info.type, safetensors::ElementType::I32) << name;
  std::vector<int32_t> out(static_cast<size_t>(info.num_elements()));
  file.read(name, std::as_writable_bytes(std::span(out)));
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::abs(a[i] - b[i]);  // a NaN stays
    if (std::isnan(worst)) return worst;
  }
  return worst;
}

double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / (norm > 0 ? norm : 1));
}

namespace {

// How a router chooses, in words: experts by key, those of the best groups only. A key is a logit, or sigmoid + bias.
class ChoiceRule {
 public:
  ChoiceRule(const config::MoeConfig& moe, std::vector<double> bias)
      : moe_(moe), groups_(std::max<int64_t>(moe.num_groups, 1)), bias_(std::move(bias)) {}

  // How far a key moves, at most, when its logit moves by 1.
  double slope() const { return moe_.score == "sigmoid" ? 0.25 : 1; }

  std::vector<double> keys(const double* logits) const {
    std::vector<double> out(logits, logits + moe_.num_experts);
    if (moe_.score == "sigmoid")
      for (size_t e = 0; e < out.size(); ++e) out[e] = 1 / (1 + std::exp(-out[e])) + bias_[e];
    return out;
  }

  int64_t group_of(size_t expert) const { return static_cast<int64_t>(expert) * groups_ / moe_.num_experts; }

  // The sum of the two best keys of each.
  std::vector<double> scores(const std::vector<double>& keys) const {
    std::vector<std::vector<double>> of(static_cast<size_t>(groups_));
    for (size_t e = 0; e < keys.size(); ++e) of[size_t(group_of(e))].push_back(keys[e]);
    std::vector<double> out;
    for (auto& group : of) {
      std::sort(group.begin(), group.end(), std::greater<>());
      out.push_back(group[0] + (group.size() > 1 ? group[1] : 0));
    }
    return out;
  }

  std::set<int32_t> choose(const std::vector<double>& keys, double& margin) const {
    const std::vector<double> score = scores(keys);
    const std::vector<size_t> groups = descending(score);
    const auto best = static_cast<size_t>(groups_ > 1 ? moe_.group_topk : 1);
    margin = best < groups.size() ? (score[groups[best - 1]] - score[groups[best]]) / 2 : INFINITY;
    const std::set<size_t> open(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(best));
    std::vector<size_t> experts = descending(keys);
    std::erase_if(experts, [&](size_t e) { return !open.contains(static_cast<size_t>(group_of(e))); });
    const auto k = static_cast<size_t>(moe_.top_k);
    if (k < experts.size()) margin = std::min(margin, keys[experts[k - 1]] - keys[experts[k]]);
    return {experts.begin(), experts.begin() + static_cast<std::ptrdiff_t>(k)};
  }

  // Whether these can have been chosen by keys that are each off by at most `off`.
  bool explains(const std::vector<double>& keys, std::span<const int32_t> chosen, double off) const {
    const std::vector<double> score = scores(keys);
    const int64_t best = groups_ > 1 ? moe_.group_topk : 1;
    const auto num_above = [&](size_t group, double by) {  // other groups
      int64_t n = 0;
      for (size_t g = 0; g < score.size(); ++g) n += g != group && score[g] > score[group] + by;
      return n;
    };
    const std::set<int32_t> set(chosen.begin(), chosen.end());
    double least = INFINITY;
    for (const int32_t e : set) {
      least = std::min(least, keys[size_t(e)]);
      if (num_above(size_t(group_of(size_t(e))), 4 * off) >= best) return false;
    }
    for (size_t e = 0; e < keys.size(); ++e) {
      if (set.contains(static_cast<int32_t>(e)) || keys[e] <= least + 2 * off) continue;
      // Better than one that was chosen: its group can have been left out, or nothing explains it.
      if (num_above(size_t(group_of(e)), -4 * off) < best) return false;
    }
    return true;
  }

 private:
  static std::vector<size_t> descending(const std::vector<double>& of) {
    std::vector<size_t> out(of.size());
    std::iota(out.begin(), out.end(), size_t{0});
    std::stable_sort(out.begin(), out.end(), [&](size_t a, size_t b) { return of[a] > of[b]; });
    return out;
  }

  config::MoeConfig moe_;
  int64_t groups_;
  std::vector<double> bias_;
};

}  // namespace

JudgedRouting judge_routing(const std::string& model_folder, const safetensors::File& run,
                            const safetensors::File& wide) {
  const config::Config c = family::read_model_config(model_folder).config;
  const safetensors::ModelFolder folder = safetensors::ModelFolder::open(model_folder);
  JudgedRouting out;
  for (int64_t layer = 0; layer < c.model.num_layers; ++layer) {
    if (!config::is_moe_layer(c, layer)) continue;
    const std::string at = fmt::format(".{}", layer);
    const std::vector<int32_t> chosen = integers(run, "routing" + at);
    EXPECT_EQ(chosen, integers(wide, "routing" + at)) << "the wider run did not follow";
    const std::vector<double> a = numbers(run, "router_logits" + at), b = numbers(wide, "router_logits" + at);
    if (const double d = relative_difference(a, b); !(d <= out.logits)) out.logits = d;  // a NaN stays
    double squares = 0;
    for (size_t i = 0; i < a.size(); ++i) squares += (a[i] - b[i]) * (a[i] - b[i]);
    const double largest = largest_difference(a, b),
                 expected = std::sqrt(2 * squares / static_cast<double>(a.size()));  // of two logits

    std::vector<double> bias(static_cast<size_t>(c.moe.num_experts), 0.0);
    if (const std::string name = fmt::format("model.layers.{}.mlp.gate.e_score_correction_bias", layer);
        folder.find(name)) {
      std::vector<std::byte> raw(bias.size() * sizeof(float));
      folder.read(name, raw);
      safetensors::decode(safetensors::ElementType::F32, raw, std::span<double>(bias));
    }
    const ChoiceRule rule(c.moe, bias);
    const auto k = static_cast<size_t>(c.moe.top_k), experts = bias.size();
    for (size_t t = 0; t * k < chosen.size(); ++t) {
      const std::vector<double> keys = rule.keys(b.data() + t * experts);
      const std::span<const int32_t> mine(chosen.data() + t * k, k);
      double margin = 0;
      const bool other = rule.choose(keys, margin) != std::set<int32_t>(mine.begin(), mine.end());
      ++out.num_choices, out.num_other += other;
      out.num_close += margin <= 3 * rule.slope() * expected;
      if (out.fault.empty() && !rule.explains(keys, mine, rule.slope() * largest))
        out.fault =
            fmt::format("layer {} token {}: logits are off by at most {:.2g} there", layer, t, largest);
    }
  }
  return out;
}

}  // namespace pleat::exchange::testing
