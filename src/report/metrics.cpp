#include "report/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"

namespace pleat::report {

namespace {

template <class T>
RouterHealth measure(int layer, std::span<const int64_t> load, int64_t dropped, LogitStats logits,
                     std::span<const T> bias) {
  if (load.empty()) base::fail("router health of layer {}: no experts", layer);
  if (!bias.empty() && bias.size() != load.size())
    base::fail("router health of layer {}: {} bias values for {} experts", layer, bias.size(), load.size());
  int64_t total = 0;
  for (const int64_t count : load) {
    if (count < 0) base::fail("router health of layer {}: negative load {}", layer, count);
    total = base::checked_add(total, count, "router load");
  }
  if (dropped < 0 || dropped > total)
    base::fail("router health of layer {}: {} dropped of {} assignments", layer, dropped, total);

  RouterHealth health;
  health.layer = layer;
  health.load.assign(load.begin(), load.end());
  health.logit_max = logits.max;
  health.logit_rms = logits.rms;
  health.dead = static_cast<int>(std::count(load.begin(), load.end(), 0));
  if (!bias.empty()) {
    const auto [lowest, highest] = std::minmax_element(bias.begin(), bias.end());
    health.bias_min = *lowest;
    health.bias_max = *highest;
  }
  if (total == 0) return health;

  const double num_experts = static_cast<double>(load.size());
  const double mean = static_cast<double>(total) / num_experts;
  const auto [least, most] = std::minmax_element(load.begin(), load.end());
  double squares = 0.0, nats = 0.0;
  for (const int64_t count : load) {
    const double off = static_cast<double>(count) - mean;
    squares += off * off;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    if (count > 0) nats -= share * std::log(share);
  }
  health.max_over_mean = static_cast<double>(*most) / mean;
  health.min_over_mean = static_cast<double>(*least) / mean;
  health.cv = std::sqrt(squares / num_experts) / mean;
  // Rounding may leave the quotient a hair above 1 for a uniform load.
  health.entropy = load.size() == 1 ? 1.0 : std::clamp(nats / std::log(num_experts), 0.0, 1.0);
  health.dropped_share = static_cast<double>(dropped) / static_cast<double>(total);
  return health;
}

double mean_load(const RouterHealth& health) {
  double total = 0.0;
  for (const int64_t count : health.load) total += static_cast<double>(count);
  return health.load.empty() ? 0.0 : total / static_cast<double>(health.load.size());
}

}  // namespace

RouterHealth router_health(int layer, std::span<const int64_t> load, int64_t dropped, LogitStats logits,
                           std::span<const float> bias) {
  return measure(layer, load, dropped, logits, bias);
}

RouterHealth router_health(int layer, std::span<const int64_t> load, int64_t dropped, LogitStats logits,
                           std::span<const double> bias) {
  return measure(layer, load, dropped, logits, bias);
}

Balance balance_of(const RouterHealth& health) {
  if (!std::isfinite(health.logit_max) || !std::isfinite(health.logit_rms)) return Balance::NonFinite;
  const double num_experts = static_cast<double>(health.load.size());
  if (health.load.size() > 1 && std::exp(health.entropy * std::log(num_experts)) < num_experts / 2)
    return Balance::Collapsing;
  if (health.dead > 0 && mean_load(health) >= kMeanLoadForDead) return Balance::Dead;
  if (health.max_over_mean >= 2.0 || health.dead > 0) return Balance::Skewed;
  if (health.max_over_mean >= 1.5 || health.min_over_mean <= 0.25) return Balance::Uneven;
  return Balance::Balanced;
}

std::string_view name_of(Balance balance) {
  switch (balance) {
    case Balance::Balanced:
      return "balanced";
    case Balance::Uneven:
      return "uneven";
    case Balance::Skewed:
      return "skewed";
    case Balance::Dead:
      return "dead";
    case Balance::Collapsing:
      return "collapsing";
    case Balance::NonFinite:
      return "non-finite";
  }
  return "?";
}

std::string_view meaning_of(Balance balance) {
  switch (balance) {
    case Balance::Balanced:
      return "no expert is far from the mean load of its layer";
    case Balance::Uneven:
      return "some expert has 1.5 times the mean load of its layer or more, or a quarter or less";
    case Balance::Skewed:
      return "some expert has twice the mean load of its layer or more, or none where the mean is below 8 "
             "tokens";
    case Balance::Dead:
      return "some expert got no token at all; raise moe.aux_coef if it lasts";
    case Balance::Collapsing:
      return "a layer uses less than half of its experts; raise moe.aux_coef";
    case Balance::NonFinite:
      return "logits of a router are no finite numbers";
  }
  return "";
}

RouterVerdict router_verdict(std::span<const RouterHealth> layers) {
  if (layers.empty()) return {};
  const RouterHealth* worst = &layers.front();
  int64_t dead = 0;
  for (const RouterHealth& health : layers) {
    dead += health.dead;
    const Balance now = balance_of(health), before = balance_of(*worst);
    if (now > before || (now == before && health.max_over_mean > worst->max_over_mean)) worst = &health;
  }
  RouterVerdict verdict;
  verdict.word = name_of(balance_of(*worst));
  verdict.meaning = meaning_of(balance_of(*worst));
  verdict.worst_layer = worst->layer;
  verdict.text = fmt::format("experts: worst layer {}, {:.1f}x, {} dead", worst->layer, worst->max_over_mean,
                             worst->dead);
  if (dead != worst->dead) verdict.text += fmt::format(" ({} in all layers)", dead);
  return verdict;
}

}  // namespace pleat::report
