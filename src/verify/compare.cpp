#include "verify/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pleat::verify {
namespace {

// |a - b| / |a|; absolute where a is zero.
double difference(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  const double norm = length_of(a), distance = std::sqrt(sum);
  if (!std::isfinite(distance)) return INFINITY;
  return norm > 1e-14 ? distance / norm : distance;
}

double relative(double a, double b) {
  if (a == b) return 0;
  const double d = std::abs(a - b) / std::max(std::abs(a), 1e-300);
  return std::isfinite(d) ? d : INFINITY;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

double length_of(const Tensor& t) {
  double sum = 0;
  for (const double x : t) sum += x * x;
  return std::sqrt(sum);
}

Comparison compare(const LayoutRun& reference, const LayoutRun& run,
                   const std::vector<model::Parameter>& table) {
  Comparison out;
  const auto row = [&](const model::Parameter& p) -> ClassRow& {
    const std::string name = name_of(p.parameter_class);
    for (ClassRow& r : out.classes)
      if (r.parameter_class == name) return r;
    out.classes.push_back({});
    out.classes.back().parameter_class = name;
    return out.classes.back();
  };
  for (const model::Parameter& p : table) {
    if (!p.tied_to.empty()) continue;
    ClassRow& r = row(p);
    for (size_t s = 0; s < reference.steps.size(); ++s) {
      const auto& gradients = reference.steps[s].gradients;
      if (!gradients.contains(p.name)) continue;  // frozen
      const Tensor &a = gradients.at(p.name), &b = run.steps[s].gradients.at(p.name);
      const double d = difference(a, b);
      out.bitwise &= same_bits(a, b);
      if (s == 0 && d >= r.first_gradient) {
        r.first_gradient = d;
        r.worst_first = p.name;
        r.first_ratio = length_of(a) > 0 ? length_of(b) / length_of(a) : 1;
      }
      if (d < r.gradient) continue;
      r.gradient = d;
      r.worst_gradient = p.name;
      r.gradient_ratio = length_of(a) > 0 ? length_of(b) / length_of(a) : 1;
    }
    const double d = difference(reference.weights.at(p.name), run.weights.at(p.name));
    out.bitwise &= same_bits(reference.weights.at(p.name), run.weights.at(p.name));
    if (d >= r.weight) r.weight = d, r.worst_weight = p.name;
    for (const auto& [name, of_all] : reference.states) {
      const Tensor &a = of_all.at(p.name), &b = run.states.at(name).at(p.name);
      out.moments = std::max(out.moments, difference(a, b));
      out.bitwise &= same_bits(a, b);
    }
  }
  for (size_t s = 0; s < reference.steps.size(); ++s) {
    const StepResults &a = reference.steps[s], &b = run.steps[s];
    out.loss = std::max(out.loss, relative(a.loss, b.loss));
    out.norm = std::max(out.norm, relative(a.norm, b.norm));
    out.clip = std::max(out.clip, relative(a.clip, b.clip));
    if (s == 0) out.first_loss = out.loss, out.first_norm = out.norm;
    out.bitwise &= a.loss == b.loss && a.norm == b.norm && a.clip == b.clip;
    out.load_equal &= a.layers.size() == b.layers.size();
    for (const auto& [layer, x] : a.layers) {
      const auto y = b.layers.find(layer);
      if (y == b.layers.end()) continue;
      out.load_equal &= x.load == y->second.load && x.dropped == y->second.dropped;
      out.bias_equal &= x.bias == y->second.bias;
      for (size_t i = 0; i < x.losses.size(); ++i)
        out.aux = std::max(out.aux, relative(x.losses[i], y->second.losses[i]));
    }
    if (s == 0) out.first_aux = out.aux;
  }
  return out;
}

double Comparison::worst() const {
  double w = std::max({loss, norm, clip, aux, moments});
  for (const ClassRow& r : classes) w = std::max({w, r.gradient, r.weight});
  return load_equal && bias_equal ? w : INFINITY;
}

std::string Comparison::verdict(double bound) const {
  std::string out;
  const auto say = [&](std::string text) { out += (out.empty() ? "" : "; ") + text; };
  if (worst() <= bound) return out;
  if (first_loss > bound) say(fmt::format("the loss of the first step differs by {:.2g}", first_loss));
  if (first_aux > bound) say(fmt::format("auxiliary losses of the first step differ by {:.2g}", first_aux));
  for (const ClassRow& r : classes)
    if (r.first_gradient > bound)
      say(fmt::format("gradients of {} are {:.6g} times the reference's length and differ by {:.2g} ({})",
                      r.parameter_class, r.first_ratio, r.first_gradient, r.worst_first));
  if (!out.empty()) return out;
  if (first_norm > bound)
    return fmt::format(
        "the gradient norm differs by {:.2g} though every gradient of the first step is right: some "
        "parameter "
        "is left out of the norm or counted twice; the clip factor differs by {:.2g}",
        first_norm, clip);
  for (const ClassRow& r : classes)
    if (r.gradient > bound)
      say(fmt::format("gradients of {} differ by {:.2g} after the first update ({})", r.parameter_class,
                      r.gradient, r.worst_gradient));
  if (norm > bound) say(fmt::format("the gradient norm differs by {:.2g}", norm));
  if (clip > bound) say(fmt::format("the clip factor differs by {:.2g}", clip));
  if (loss > bound) say(fmt::format("the loss differs by {:.2g}", loss));
  if (aux > bound) say(fmt::format("auxiliary losses differ by {:.2g}", aux));
  if (!load_equal) say("expert loads differ");
  if (!bias_equal) say("biases that balance experts differ");
  for (const ClassRow& r : classes)
    if (r.weight > bound)
      say(fmt::format("updated weights of {} differ by {:.2g} ({})", r.parameter_class, r.weight,
                      r.worst_weight));
  if (moments > bound) say(fmt::format("moments differ by {:.2g}", moments));
  return out;
}

}  // namespace pleat::verify
