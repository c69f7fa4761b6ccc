#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "report/table.h"
#include "runtime/rank_setup.h"
#include "schedule/ranks.h"
#include "verify/compare.h"
#include "verify/shrink.h"

namespace pleat::apps {
namespace {

constexpr double kBound = 1e-10;

struct VerifyLayoutArguments {
  ConfigArgument config;
  int ranks = 1;
  std::string fault = "none";
  bool json = false;
};

verify::Fault fault_of(const std::string& name) {
  if (name == "scale-experts") return verify::Fault::ScaleExpertGradients;
  if (name == "drop-reduction") return verify::Fault::DropReduction;
  if (name == "skip-norm") return verify::Fault::SkipNorm;
  return verify::Fault::None;
}

// The small copy has layers for an even split.
std::vector<model::Role> roles_of(config::Config c, const model::Mesh& m) {
  if (m.pp == 1) return {};
  c.parallel.pp = m.pp, c.parallel.vpp = m.vpp;
  return schedule::roles_of(c);
}

int run(const VerifyLayoutArguments& a) {
  const config::Config asked = a.config.load();
  const model::Mesh mesh = runtime::rank_setup(a.config.resolved(), a.ranks, 0).mesh;
  const verify::Shrunk small = verify::shrink(asked, mesh);
  const std::vector<model::Parameter> table = model::make_parameters(small.config);
  const auto start = std::chrono::steady_clock::now();

  model::Mesh one;
  verify::RunOptions reference_options;
  if (small.config.moe.capacity_factor > 0) {
    // Drops are defined on the tokens a rank holds: the reference is told who holds which.
    one.pieces = mesh.tp * mesh.cp;
    reference_options.pieces_of = mesh;
  }
  const verify::LayoutRun reference = verify::run_layout(small.config, one, {}, reference_options);
  verify::RunOptions options;
  options.fault = fault_of(a.fault);
  const verify::LayoutRun under =
      verify::run_layout(small.config, mesh, roles_of(small.config, mesh), options);
  const verify::Comparison result = verify::compare(reference, under, table);
  const std::string verdict = result.verdict(kBound);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  if (a.json) {
    nlohmann::json out = {
        {"pass", verdict.empty()}, {"bound", kBound},           {"worst", result.worst()},
        {"loss", result.loss},     {"norm", result.norm},       {"clip", result.clip},
        {"aux", result.aux},       {"moments", result.moments}, {"loads_equal", result.load_equal},
        {"verdict", verdict},      {"seconds", seconds},        {"ranks", a.ranks}};
    for (const verify::ClassRow& r : result.classes)
      out["classes"][r.parameter_class] = {{"gradient_ratio", r.gradient_ratio},
                                           {"gradient", r.gradient},
                                           {"weight", r.weight},
                                           {"worst_gradient", r.worst_gradient}};
    fmt::print("{}\n", out.dump(2));
    return verdict.empty() ? 0 : static_cast<int>(base::ExitCode::Numerical);
  }
  fmt::print("{}: attention tp {} x cp {} x dp {} x pp {}, experts etp {} x ep {} x edp {} x pp {}{}\n",
             base::counted(a.ranks, "rank"), mesh.tp, mesh.cp, mesh.dp, mesh.pp, mesh.etp, mesh.ep, mesh.edp,
             mesh.pp, mesh.cp > 1 ? fmt::format("; context by {}", model::name_of(mesh.context)) : "");
  fmt::print("three steps of a small copy of the model in float64, against one rank ({:.1f} s)\n", seconds);
  for (const std::string& change : small.changes) fmt::print("  {}\n", change);
  report::Table rows({{"class"},
                      {"|gradient| ratio", report::Align::Right},
                      {"gradient differs by", report::Align::Right},
                      {"weights differ by", report::Align::Right},
                      {"worst tensor"}});
  for (const verify::ClassRow& r : result.classes)
    rows.add_row({r.parameter_class, fmt::format("{:.12f}", r.gradient_ratio),
                  fmt::format("{:.2g}", r.gradient), fmt::format("{:.2g}", r.weight), r.worst_gradient});
  fmt::print("\n{}\n", rows.text());
  fmt::print(
      "loss {:.2g}, gradient norm {:.2g}, clip factor {:.2g}, aux and z losses {:.2g}, moments {:.2g}; "
      "expert "
      "loads {}\n",
      result.loss, result.norm, result.clip, result.aux, result.moments,
      result.load_equal ? "equal" : "DIFFER");
  fmt::print("{}\n", verdict.empty() ? fmt::format("PASS: every difference is below {:.0e}", kBound)
                                     : "FAIL: " + verdict);
  return verdict.empty() ? 0 : static_cast<int>(base::ExitCode::Numerical);
}

}  // namespace

void add_verify_layout(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<VerifyLayoutArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_option("--ranks", a->ranks, "Ranks of the layout")->capture_default_str()->check(CLI::Range(1, 256));
  c->add_flag("--json", a->json, "Print the result as JSON");
  c->add_option("--fault", a->fault, "")
      ->group("")
      ->check(CLI::IsMember({"none", "scale-experts", "drop-reduction", "skip-norm"}));
  add_example(*c, "pleat verify-layout configs/tiny.toml --ranks 8 --set parallel.tp=2 --set parallel.ep=4");
  c->callback([a, &chosen] { chosen = [a] { return run(*a); }; });
}

}  // namespace pleat::apps
