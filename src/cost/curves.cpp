#include "cost/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/terminal_text.h"
#include "config/flat_toml.h"
#include "config/quote.h"

namespace pleat::cost {

using program::KernelKind;
using program::Phase;

std::string_view name_of(CurveClass c) {
  switch (c) {
    case CurveClass::Product:
      return "product";
    case CurveClass::Grouped:
      return "grouped";
    case CurveClass::GroupedWeight:
      return "grouped_weight";
    case CurveClass::Attention:
      return "attention";
    case CurveClass::AttentionBack:
      return "attention_back";
    case CurveClass::Stream:
      return "stream";
    case CurveClass::Update:
      return "update";
    case CurveClass::Scaled:
      return "scaled";
    case CurveClass::ScaledGrouped:
      return "scaled_grouped";
  }
  return "";
}

CurveClass curve_class(KernelKind kind, Phase phase, const kernels::Work& work) {
  if (phase == Phase::Update) return CurveClass::Update;
  if (work.flops <= 0) return CurveClass::Stream;
  if (kind == KernelKind::scaled_linear) return CurveClass::Scaled;
  if (kind == KernelKind::scaled_grouped_linear) return CurveClass::ScaledGrouped;
  if (kind == KernelKind::grouped_linear)
    return phase == Phase::BackwardWeight ? CurveClass::GroupedWeight : CurveClass::Grouped;
  if (program::name_of(kind).find("attention") != std::string_view::npos)
    return phase == Phase::Forward ? CurveClass::Attention : CurveClass::AttentionBack;
  return CurveClass::Product;
}

Curves ideal_curves(MachineKind kind) { return {kind, "every rate in full", {}}; }

Curves shipped_curves(MachineKind kind) {
  Curves c;
  c.kind = kind;
  const auto at = [&](CurveClass k) -> Curve& { return c.of[static_cast<size_t>(k)]; };
  if (kind == MachineKind::Cpu) {
    c.source = "round figures of CPUs: measure yours with `pleat bench costs`";
    c.of.fill({1, 1.2, 0.5});
    at(CurveClass::Stream) = at(CurveClass::Update) = {1, 1, 2};
    at(CurveClass::Attention) = at(CurveClass::AttentionBack) = {1, 3, 1};
    at(CurveClass::Scaled) = at(CurveClass::ScaledGrouped) = {1, 6, 1};
    return c;
  }
  // What `pleat bench fit` finds for the stages of six models in bf16 on one H200 (docs/measurements.md, "Simulated steps
  // of one GPU"), with the default attention, which is deterministic.
  c.source = "fitted to the stages of six models on one H200; those of codes are published rates";
  at(CurveClass::Product) = {6, 1.368, 0.128};
  at(CurveClass::Grouped) = {6, 1.419, 0.043};
  at(CurveClass::GroupedWeight) = {6, 1.418, 0.592};
  at(CurveClass::Attention) = {6, 1.538, 4.531};
  at(CurveClass::AttentionBack) = {6, 3.1, 0};
  at(CurveClass::Stream) = {5.265, 0, 1.192};
  at(CurveClass::Update) = {4.577, 0, 1.144};
  // Products with a scale for each block: the best published for an H200 and an H100, 931 to 1,280 and 690 to 1,243 of
  // 1,979 TFLOP/s. Nothing of ours.
  at(CurveClass::Scaled) = {1, 1979.0 / 1150, 0.25};
  at(CurveClass::ScaledGrouped) = {1, 1979.0 / 1000, 0.5};
  return c;
}

namespace {

std::array<double, 3> terms(const Machine& m, tensor::Dtype dtype, const kernels::Work& w) {
  // A CPU decodes codes and multiplies floats.
  if (m.kind == MachineKind::Cpu && !tensor::is_float(dtype)) dtype = tensor::Dtype::F32;
  return {m.processor.launch_us * 1e3 * std::max(w.launches, 1),
          w.flops > 0 ? w.flops / m.processor.flops_per_ns(dtype) : 0, w.bytes / m.processor.memory_gb_s};
}

// A start, its ramp and its end are worth so many bare launches. Unbounded, the launch of a class with few points takes
// what some odd shape costs, and smaller shapes are priced by it.
constexpr double kMostLaunches = 6, kAny = std::numeric_limits<double>::infinity();

// Least squares of (sum of x_i t_i / ns - 1), weighted, 0 <= x_i, by coordinates in turns: three unknowns, and the sum
// is convex, so that it ends at its least.
std::array<double, 3> least_squares(const std::vector<std::array<double, 3>>& relative,
                                    const std::vector<double>& weight, std::array<double, 3> x) {
  for (int round = 0; round < 2000; ++round) {
    double moved = 0;
    for (size_t k = 0; k < 3; ++k) {
      double top = 0, bottom = 0;
      for (size_t i = 0; i < relative.size(); ++i) {
        const auto& t = relative[i];
        double rest = 1;
        for (size_t j = 0; j < 3; ++j)
          if (j != k) rest -= x[j] * t[j];
        top += weight[i] * t[k] * rest, bottom += weight[i] * t[k] * t[k];
      }
      if (bottom <= 0) continue;  // no point says anything of it
      const double next = std::clamp(top / bottom, 0.0, k == 0 ? kMostLaunches : kAny);
      moved = std::max(moved, std::abs(next - x[k]) / (std::abs(x[k]) + 1e-12));
      x[k] = next;
    }
    if (moved < 1e-10) break;
  }
  return x;
}

double difference(const std::array<double, 3>& x, const std::array<double, 3>& t) {
  return x[0] * t[0] + x[1] * t[1] + x[2] * t[2] - 1;
}

// The same with absolute differences: squares, each weighted by the inverse of what its difference was the last time.
std::array<double, 3> fit_one(const std::vector<std::array<double, 3>>& relative,
                              const std::vector<double>& weight, std::array<double, 3> x) {
  std::vector<double> now = weight;
  for (int round = 0; round < 40; ++round) {
    const auto before = x;
    x = least_squares(relative, now, x);
    for (size_t i = 0; i < relative.size(); ++i)
      now[i] = weight[i] / std::max(std::abs(difference(x, relative[i])), 1e-4);
    double moved = 0;
    for (size_t k = 0; k < 3; ++k) moved = std::max(moved, std::abs(x[k] - before[k]));
    if (moved < 1e-7) break;
  }
  return x;
}

}  // namespace

double curve_ns(const Machine& m, const Curve& c, tensor::Dtype dtype, const kernels::Work& w) {
  const auto t = terms(m, dtype, w);
  return c.launch * t[0] + c.flops * t[1] + c.bytes * t[2];
}

FittedCurves fit_curves(const Machine& m, const std::vector<CurvePoint>& points, const Curves& prior,
                        std::string source) {
  FittedCurves out;
  out.curves = prior;
  out.curves.source = std::move(source);
  for (size_t c = 0; c < kNumCurveClasses; ++c) {
    std::vector<std::array<double, 3>> relative;
    std::vector<double> weight;
    for (const CurvePoint& p : points) {
      if (static_cast<size_t>(p.of) != c || p.ns <= 0) continue;
      auto t = terms(m, p.dtype, p.work);
      for (double& v : t) v /= p.ns;
      relative.push_back(t);
      weight.push_back(p.weight * p.ns);  // what a step spends in it
    }
    if (relative.empty()) continue;
    const Curve& before = prior.of[c];
    const auto x = fit_one(relative, weight, {before.launch, before.flops, before.bytes});
    CurveFit fit;
    fit.of = static_cast<CurveClass>(c);
    fit.curve = {x[0], x[1], x[2]};
    fit.points = static_cast<int>(relative.size());
    double sum = 0, all = 0;
    for (size_t i = 0; i < relative.size(); ++i) {
      const double error = std::abs(difference(x, relative[i]));
      sum += weight[i] * error, all += weight[i];
      fit.worst_error = std::max(fit.worst_error, error);
    }
    fit.mean_error = sum / all;
    out.curves.of[c] = fit.curve;
    out.fits.push_back(fit);
  }
  return out;
}

std::string to_toml(const Curves& curves) {
  std::string out =
      fmt::format("[curves]\nkind = \"{}\"\nsource = {}\n", curves.kind == MachineKind::Gpu ? "gpu" : "cpu",
                  config::to_text(curves.source));
  for (size_t c = 0; c < kNumCurveClasses; ++c)
    out += fmt::format("\n[{}]\nlaunch = {}\nflops = {}\nbytes = {}\n", name_of(static_cast<CurveClass>(c)),
                       config::to_text(curves.of[c].launch), config::to_text(curves.of[c].flops),
                       config::to_text(curves.of[c].bytes));
  return out;
}

Curves curves_from_toml(std::string_view text, std::string_view source) {
  Curves out;
  std::map<std::string, double*> fields;
  for (size_t c = 0; c < kNumCurveClasses; ++c) {
    const std::string section(name_of(static_cast<CurveClass>(c)));
    fields[section + ".launch"] = &out.of[c].launch, fields[section + ".flops"] = &out.of[c].flops;
    fields[section + ".bytes"] = &out.of[c].bytes;
  }
  std::map<std::string, bool> seen;
  for (const config::FlatEntry& entry : config::flat_toml(text, source)) {
    seen[entry.path] = true;
    if (entry.path == "curves.source") {
      const auto* words = std::get_if<std::string>(&entry.value);
      if (!words || !base::is_plain_line(*words))
        base::fail("{}: curves.source must be one line of printable text", entry.where);
      out.source = *words;
      continue;
    }
    if (entry.path == "curves.kind") {
      const auto* kind = std::get_if<std::string>(&entry.value);
      if (!kind || (*kind != "gpu" && *kind != "cpu"))
        base::fail("{}: curves.kind must be \"gpu\" or \"cpu\"", entry.where);
      out.kind = *kind == "gpu" ? MachineKind::Gpu : MachineKind::Cpu;
      continue;
    }
    const auto field = fields.find(entry.path);
    if (field == fields.end())
      base::fail("{}: unknown key {}; a curve has launch, flops and bytes", entry.where,
                 config::quote(entry.path));
    double v = -1;
    if (const auto* number = std::get_if<double>(&entry.value)) v = *number;
    if (const auto* whole = std::get_if<int64_t>(&entry.value)) v = static_cast<double>(*whole);
    if (!(v >= 0 && v <= 1e6)) base::fail("{}: {} must be a number from 0 to 1e6", entry.where, entry.path);
    *field->second = v;
  }
  if (!seen["curves.kind"]) base::fail("{}: curves.kind is missing", source);
  // Written before there were such classes: products of codes as in the binary, weight gradients as the other products.
  const Curves shipped = shipped_curves(out.kind);
  for (const CurveClass c : {CurveClass::Scaled, CurveClass::ScaledGrouped, CurveClass::GroupedWeight}) {
    const std::string section(name_of(c));
    if (seen[section + ".launch"] || seen[section + ".flops"] || seen[section + ".bytes"]) continue;
    out.of[static_cast<size_t>(c)] = c == CurveClass::GroupedWeight ? out[CurveClass::Grouped] : shipped[c];
    seen[section + ".launch"] = seen[section + ".flops"] = seen[section + ".bytes"] = true;
  }
  for (const auto& [path, field] : fields)
    if (!seen[path]) base::fail("{}: {} is missing", source, path);
  for (size_t c = 0; c < kNumCurveClasses; ++c)
    if (out.of[c] == Curve{0, 0, 0})
      base::fail(
          "{}: launch, flops and bytes of {} are all 0: its kernels would take no time; needed is one above "
          "0",
          source, name_of(static_cast<CurveClass>(c)));
  return out;
}

}  // namespace pleat::cost
