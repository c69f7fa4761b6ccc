// pleat bench fit: curves (cost/curves.h) from measured stages.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "cost/cost_file.h"
#include "cost/machine_file.h"
#include "cost/measured_on.h"
#include "cost/price.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

struct FitArguments {
  std::vector<std::string> costs;
  std::string machine, out;
  bool json = false;
};

// "scaled, scaled_grouped"
std::string classes_without(const std::vector<cost::CurveFit>& fits) {
  std::string out;
  for (size_t c = 0; c < cost::kNumCurveClasses; ++c) {
    const auto of = static_cast<cost::CurveClass>(c);
    if (std::none_of(fits.begin(), fits.end(), [&](const cost::CurveFit& f) { return f.of == of; }))
      out += fmt::format("{}{}", out.empty() ? "" : ", ", name_of(of));
  }
  return out;
}

int run_fit(const FitArguments& a) {
  std::vector<cost::CostFile> files;
  for (const std::string& path : a.costs) files.push_back(cost::read_costs(path));
  const cost::CostFile all = cost::join(files);
  const cost::Machine machine = cost::measured_on(
      all.machine, a.machine.empty() ? cost::default_machine(all.machine) : cost::find_machine(a.machine));
  if (!a.machine.empty() && machine.name != cost::find_machine(a.machine).name)
    base::fail("the costs were measured on {}, which is a machine '{}' and no '{}'", describe(all.machine),
               machine.name, a.machine);
  std::vector<cost::CurvePoint> points;
  for (const cost::CostEntry& entry : all.entries) points.push_back(cost::curve_point(entry));
  if (points.empty()) base::fail("the costs hold no measured stage: there is nothing to fit");
  std::string source = fmt::format("{}; ", describe(all.machine));
  for (size_t i = 0; i < files.size(); ++i) source += (i > 0 ? ", " : "") + files[i].config;
  const cost::FittedCurves fitted =
      cost::fit_curves(machine, points, cost::shipped_curves(machine.kind), std::move(source));
  cost::Curves curves = fitted.curves;
  const std::string others = classes_without(fitted.fits);
  if (!others.empty()) curves.source += fmt::format("; not measured, as in the binary: {}", others);
  write_text(a.out, cost::to_toml(curves));
  if (a.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const cost::CurveFit& f : fitted.fits)
      rows.push_back({{"class", name_of(f.of)},
                      {"points", f.points},
                      {"launch", f.curve.launch},
                      {"flops", f.curve.flops},
                      {"bytes", f.curve.bytes},
                      {"mean_error", f.mean_error},
                      {"worst_error", f.worst_error}});
    fmt::print("{}\n", nlohmann::json{{"file", a.out}, {"machine", machine.name}, {"fits", rows}}.dump(1));
    return 0;
  }
  constexpr auto kRight = report::Align::Right;
  report::Table table({{"class"},
                       {"stages", kRight},
                       {"launches x", kRight},
                       {"flops / peak x", kRight},
                       {"bytes / rate x", kRight},
                       {"off by, mean", kRight},
                       {"worst", kRight}});
  for (const cost::CurveFit& f : fitted.fits)
    table.add_row({std::string(name_of(f.of)), fmt::format("{}", f.points),
                   fmt::format("{:.3f}", f.curve.launch), fmt::format("{:.3f}", f.curve.flops),
                   fmt::format("{:.3f}", f.curve.bytes), fmt::format("{:.1f} %", 100 * f.mean_error),
                   fmt::format("{:.1f} %", 100 * f.worst_error)});
  for (const cost::CurveFit& f : fitted.fits)
    if (f.mean_error > 0.25)
      fmt::print(
          stderr,
          "note: class {} is off by {:.0f} % on the stages it was fitted to: they do not follow launches, "
          "arithmetic and bytes, or the machine was not quiet\n",
          name_of(f.of), 100 * f.mean_error);
  fmt::print("{}\ncurves of machine '{}', from {}: {}\n", table.text(), machine.name, curves.source, a.out);
  return 0;
}

}  // namespace

void add_bench_fit(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<FitArguments>();
  command.add_option("costs", a->costs, "Files that `pleat bench costs` wrote, all of one machine")
      ->required();
  command.add_option("--out", a->out, "The file of curves to write, for `pleat simulate --curves`")
      ->required();
  command.add_option(
      "--machine", a->machine,
      fmt::format(
          "Whose rates the costs are compared with (default: the one with the GPU of the costs; {} for "
          "costs of a CPU)",
          cost::kDefaultCpu));
  command.add_flag("--json", a->json, "Print JSON instead of the table");
  add_example(command, "pleat bench fit costs-qwen3.json costs-mixtral.json --out curves.toml");
  command.callback([a, &chosen] { chosen = [a] { return run_fit(*a); }; });
}

}  // namespace pleat::apps
