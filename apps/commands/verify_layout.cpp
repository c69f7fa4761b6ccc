#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "device/cuda/cuda.h"
#include "report/table.h"
#include "runtime/rank_setup.h"
#include "schedule/pass/offload.h"
#include "schedule/pass/recompute.h"
#include "verify/budget.h"
#include "verify/compare.h"
#include "verify/precision.h"
#include "verify/shrink.h"

namespace pleat::apps {
namespace {

constexpr double kBound = 1e-10;

struct VerifyLayoutArguments {
  ConfigArgument config;
  int ranks = 1;
  std::string fault = "none", precision = "float64";
  bool json = false, cpu = false;
};

verify::Fault fault_of(const std::string& name) {
  if (name == "scale-experts") return verify::Fault::ScaleExpertGradients;
  if (name == "drop-reduction") return verify::Fault::DropReduction;
  if (name == "skip-norm") return verify::Fault::SkipNorm;
  if (name == "drop-expert") return verify::Fault::DropExpert;
  return verify::Fault::None;
}

void print_layout(const VerifyLayoutArguments& a, const model::Mesh& mesh) {
  fmt::print("{}: attention tp {} x cp {} x dp {} x pp {}, experts etp {} x ep {} x edp {} x pp {}{}\n",
             base::counted(a.ranks, "rank"), mesh.tp, mesh.cp, mesh.dp, mesh.pp, mesh.etp, mesh.ep, mesh.edp,
             mesh.pp, mesh.cp > 1 ? fmt::format("; context by {}", model::name_of(mesh.context)) : "");
}

int run_in_precision(const VerifyLayoutArguments& a, const config::Config& asked, const model::Mesh& mesh) {
  std::string why;
  if (!a.cpu && asked.device.kind == "cuda" && device::cuda::num_devices(&why) == 0)
    base::fail_with(
        base::ExitCode::Hardware,
        "device.kind = \"cuda\", but no GPU can be used here: {}; --cpu compares on the CPU, bfloat16 "
        "by rounding float32",
        why);
  verify::Shrunk small =
      verify::shrink(asked, mesh, a.cpu ? verify::SmallCopy::AskedOnCpu : verify::SmallCopy::Asked);
  const auto start = std::chrono::steady_clock::now();
  verify::PrecisionOptions options;
  options.narrow = a.cpu && asked.model.dtype == "bfloat16";
  const verify::PrecisionReport r =
      verify::OneRank(small.config, options, mesh).verify(small.config, mesh, small.roles, fault_of(a.fault));
  for (const std::string& note : {r.budget, r.left_out})
    if (!note.empty()) small.changes.push_back(note);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int code = r.verdict.empty() ? 0 : static_cast<int>(base::ExitCode::Numerical);
  const std::string device =
      options.narrow ? "cpu, rounded" : small.config.device.kind;  // what the comparison says about where
  if (a.json) {
    nlohmann::json out = {
        {"pass", r.verdict.empty()}, {"precision", r.dtype},         {"device", device},
        {"unit_roundoff", r.unit},   {"bound_over_noise", r.factor}, {"loads_equal", r.loads_equal},
        {"verdict", r.verdict},      {"seconds", seconds},           {"ranks", a.ranks}};
    out["one_rank_against_float64"] = {
        {"pass", r.alone.fault.empty()},
        {"gradient", r.alone.gradient},
        {"share_of_bound", std::max(r.alone.gradient_share, r.alone.later_share)}};
    for (const verify::PrecisionRow& row : r.rows)
      out["rows"].push_back({{"what", row.what},
                             {"difference", row.difference},
                             {"noise", row.noise},
                             {"weights_apart", row.moved},
                             {"bound", row.bound},
                             {"pass", row.passed()},
                             {"worst", row.worst}});
    fmt::print("{}\n", out.dump(2));
    return code;
  }
  print_layout(a, mesh);
  fmt::print(
      "three steps of a small copy of the model in {} ({}), against one rank, which chooses the experts for "
      "both ({:.1f} s)\n",
      r.dtype, device, seconds);
  for (const std::string& change : small.changes) fmt::print("  {}\n", change);
  fmt::print("\none rank against float64: gradients differ by {:.2g}, {:.0f} % of what {} may round\n",
             r.alone.gradient, 100 * std::max(r.alone.gradient_share, r.alone.later_share), r.dtype);
  fmt::print(
      "noise: the error of one rank against float64; weights apart: what it may change that a later step "
      "begins "
      "with other weights\n"
      "bound: {:.2f} x noise + weights apart; without noise, a few last places of what follows from its own "
      "gradients\n",
      r.factor);
  report::Table rows({{"what"},
                      {"differs by", report::Align::Right},
                      {"noise", report::Align::Right},
                      {"weights apart", report::Align::Right},
                      {"bound", report::Align::Right},
                      {"share", report::Align::Right},
                      {""},
                      {"nearest to its bound"}});
  for (const verify::PrecisionRow& row : r.rows)
    rows.add_row({row.what, fmt::format("{:.2g}", row.difference),
                  row.noise > 0 ? fmt::format("{:.2g}", row.noise) : "",
                  row.moved > 0 ? fmt::format("{:.2g}", row.moved) : "", fmt::format("{:.2g}", row.bound),
                  row.bound > 0 ? fmt::format("{:.0f} %", 100 * row.difference / row.bound) : "",
                  row.passed() ? "ok" : "FAIL", row.worst});
  fmt::print("\n{}\n", rows.text());
  fmt::print("{}\n", r.verdict.empty() ? "PASS: every difference is inside its bound" : "FAIL: " + r.verdict);
  return code;
}

int run(const VerifyLayoutArguments& a) {
  const config::Config asked = a.config.load();
  const config::Config resolved = a.config.resolved();
  const model::Mesh mesh = runtime::rank_setup(resolved, a.ranks, 0).mesh;
  schedule::require_freed_by_ranks(resolved);  // the copy has other layers
  schedule::require_offloaded_by_ranks(resolved);
  if (a.precision == "config") return run_in_precision(a, asked, mesh);
  if (a.cpu) base::fail("--cpu needs --precision config: float64 runs on the CPU in any case");
  verify::Shrunk small = verify::shrink(asked, mesh);
  const std::vector<model::Parameter> table = model::make_parameters(small.config);
  const auto start = std::chrono::steady_clock::now();

  model::Mesh one;
  verify::RunOptions reference_options;
  if (small.config.moe.capacity_factor > 0) {
    // Drops are defined on the tokens a rank holds: the reference is told who holds which.
    one.pieces = mesh.tp * mesh.cp;
    reference_options.pieces_of = mesh;
  }
  if (small.config.moe.token_budget > 0) reference_options.routing = model::RoutingUse::Record;
  const verify::LayoutRun reference = verify::run_layout(small.config, one, {}, reference_options);
  if (const std::string raised = verify::fit_budget(small.config, mesh, reference); !raised.empty())
    small.changes.push_back(raised);
  verify::RunOptions options;
  options.fault = fault_of(a.fault);
  const verify::LayoutRun under = verify::run_layout(small.config, mesh, small.roles, options);
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
  print_layout(a, mesh);
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
  c->add_option("--precision", a->precision,
                "float64 on the CPU, or model.dtype of the configuration on its device, with the experts of "
                "every token given by one rank")
      ->capture_default_str()
      ->check(CLI::IsMember({"float64", "config"}));
  c->add_flag("--cpu", a->cpu, "With --precision config: on the CPU, bfloat16 by rounding float32");
  c->add_flag("--json", a->json, "Print the result as JSON");
  c->add_option("--fault", a->fault, "")
      ->group("")
      ->check(CLI::IsMember({"none", "scale-experts", "drop-reduction", "skip-norm", "drop-expert"}));
  add_example(*c,
              "pleat verify-layout configs/tiny.toml --ranks 8 --set parallel.tp=2 --set parallel.ep=4 "
              "--set train.num_microbatches=4");
  c->callback([a, &chosen] { chosen = [a] { return run(*a); }; });
}

}  // namespace pleat::apps
