#include "verify/own_gradients.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/parameters.h"
#include "model/state.h"
#include "train/learning_rate.h"
#include "verify/clip_factor.h"
#include "verify/compare.h"
#include "verify/noise.h"
#include "verify/rounding_bound.h"

namespace pleat::verify {
namespace {

constexpr double kUpdateUnit = 0x1p-24;  // AdamW computes in float32, or better
constexpr double kRoundings = 8;         // of one element in one update, all of them one way

double number_of(const program::AttrSet& attrs, std::string_view key) {
  const auto found =
      std::find_if(attrs.begin(), attrs.end(), [&](const program::Attr& a) { return a.key == key; });
  PLEAT_CHECK(found != attrs.end(), "an update has no '{}'", key);
  return found->number;
}

std::vector<model::StateSlot> moments_of(const config::Config& c, const std::vector<model::Parameter>& table,
                                         const std::string& name) {
  const int found = model::find_parameter(table, name);
  PLEAT_CHECK(found >= 0, "there is no parameter {}", name);
  std::vector<model::StateSlot> out;
  for (const model::StateSlot& s : model::optimizer_of(c, table[static_cast<size_t>(found)]).states)
    if (s.power != 0) out.push_back(s);
  PLEAT_CHECK(out.size() == 2 && out[0].power == 1 && out[1].power == -0.5,
              "this update has other states than two moments");
  return out;
}

// The one with the larger share of its bound.
void take(OwnResult& into, double difference, double bound, const std::string& what) {
  if (difference * into.bound <= into.difference * bound && into.bound > 0) return;
  into = {difference, bound, what};
}

}  // namespace

OwnResults from_own_gradients(const config::Config& c, const LayoutRun& run) {
  OwnResults out;
  for (size_t s = 0; s < run.steps.size(); ++s) {
    const StepResults& step = run.steps[s];
    double squares = 0, elements = 0;
    for (const auto& [name, g] : step.gradients) {
      squares += length_of(g) * length_of(g);
      elements += static_cast<double>(g.size());
    }
    const double norm = std::sqrt(squares), clip = c.optimizer.clip;
    // Squares are added in double, here and there in another order.
    const double bound = 2 * elements * 0x1p-53;
    const std::string what = "step " + std::to_string(s + 1);
    take(out.norm, std::abs(step.norm / norm - 1), bound, what);
    const bool whole = c.optimizer.clip_by == "global";
    const double want = whole && clip > 0 && step.norm > clip ? clip / step.norm : 1;
    take(out.clip, std::abs(step.clip / want - 1), 0x1p-50, what);
  }
  const std::vector<model::Parameter> table = model::make_parameters(c);
  for (const auto& [name, attrs] : run.updates) {
    if (!run.weights.contains(name)) continue;  // tied: a weight of another name
    const std::vector<model::StateSlot> states = moments_of(c, table, name);
    const double unit1 = std::max(states[0].rounding, kUpdateUnit),
                 unit2 = std::max(states[1].rounding, kUpdateUnit);
    const double beta1 = number_of(attrs, "beta1"), beta2 = number_of(attrs, "beta2"),
                 eps = number_of(attrs, "eps"), decay = number_of(attrs, "weight_decay");
    const Tensor& begin = run.initial.at(name);
    Tensor m(begin.size(), 0), v(begin.size(), 0), w = begin;
    double t = 0, allowed = 0;
    for (size_t s = 0; s < run.steps.size(); ++s) {
      const StepResults& step = run.steps[s];
      if (!step.committed) continue;
      t += 1;
      const double lr = train::learning_rate(c, static_cast<int64_t>(s) + 1) * number_of(attrs, "lr_mult");
      const double at = static_cast<double>(s) + 1, rate = lr / (1 - std::pow(beta1, at)),
                   root = 1 / std::sqrt(1 - std::pow(beta2, at));
      const Tensor& g = step.gradients.at(name);
      const double factor = clip_factor(c, run, s, name);
      double moved = 0;
      for (size_t i = 0; i < w.size(); ++i) {
        const double scaled = factor * g[i];
        m[i] = beta1 * m[i] + (1 - beta1) * scaled;
        v[i] = beta2 * v[i] + (1 - beta2) * scaled * scaled;
        const double by = rate * m[i] / (std::sqrt(v[i]) * root + eps);
        w[i] = w[i] * (1 - lr * decay) - by;
        moved += by * by;
      }
      // Moments that round as they are stored do so once per step; so does the weight.
      allowed += kRoundings * (t * (unit1 + unit2) * std::sqrt(moved) + kUpdateUnit * length_of(w));
      const double way = apart_of(begin, w);
      take(out.weights, apart_of(w, step.weights.at(name)) / way, allowed / way, name);
    }
    const auto relative = [&](const Tensor& a, const Tensor& b) {
      const double d = apart_of(a, b);
      return d == 0 ? 0 : d / length_of(a);
    };
    take(out.moment1, relative(m, run.states.at(states[0].name).at(name)), kRoundings * t * unit1, name);
    take(out.moment2, relative(v, run.states.at(states[1].name).at(name)), kRoundings * t * unit2, name);
  }
  return out;
}

}  // namespace pleat::verify
