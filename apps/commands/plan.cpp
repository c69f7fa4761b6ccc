#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "command.h"
#include "cost/flops.h"
#include "interpret/check/check.h"
#include "interpret/plan/plan.h"
#include "model/parameters.h"
#include "report/format.h"
#include "report/table.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"

namespace pleat::apps {
namespace {

struct Row {
  std::string name;
  program::Program program;
  interpret::Plan plan;
  int host_waits = 0;
};

// The training step as built, and after every pass: what each technique moved.
std::vector<Row> rows_of(const config::Config& config) {
  const auto table = model::make_parameters(config);
  std::vector<Row> rows;
  const auto note = [&](std::string name, const program::Program& program) {
    const interpret::CheckReport report = interpret::check(program);
    interpret::require_ok(report, "program after " + name);
    rows.push_back({std::move(name), program, interpret::plan(program), report.host_waits});
  };
  program::Program program = schedule::build_training_step(config, table);
  note("as built", program);
  schedule::apply_passes(
      std::move(program), config, {}, nullptr,
      [&](const schedule::Pass& pass, const program::Program& p) { note(std::string(pass.name), p); });
  return rows;
}

nlohmann::json to_json(const config::Config& config, const std::vector<Row>& rows) {
  const Row& last = rows.back();
  nlohmann::json out = {
      {"arena_bytes", last.plan.arena_bytes},           {"live_peak_bytes", last.plan.live_peak_bytes},
      {"persistent_bytes", last.plan.persistent_bytes}, {"host_waits", last.host_waits},
      {"stages", last.program.stages.size()},           {"values", last.program.values.size()}};
  out["peak_stage"] =
      last.plan.peak_stage >= 0 ? program::stage_name(last.program.stages[size_t(last.plan.peak_stage)]) : "";
  for (size_t i = 0; i < last.plan.at_peak.size(); ++i) {
    const std::string owner{program::name_of(static_cast<program::Owner>(i))};
    out["memory_by_owner"][owner] = last.plan.at_peak[i];
  }
  for (const Row& row : rows)
    out["passes"].push_back({{"name", row.name},
                             {"arena_bytes", row.plan.arena_bytes},
                             {"live_peak_bytes", row.plan.live_peak_bytes},
                             {"stages", row.program.stages.size()}});
  const auto count = model::count_parameters(config, model::make_parameters(config));
  out["parameters"] = {{"total", count.total}, {"active", count.active}, {"mtp", count.mtp}};
  out["model_flops_per_token"] = cost::model_flops(config, 1, double(config.train.seq_len)).total();
  return out;
}

void print_tables(const config::Config& config, const std::vector<Row>& rows) {
  const Row& last = rows.back();
  const auto count = model::count_parameters(config, model::make_parameters(config));
  fmt::print("{} parameters, {} active per token", report::format_count(double(count.total)),
             report::format_count(double(count.active)));
  if (count.mtp > 0)
    fmt::print("; {} more in multi-token prediction", report::format_count(double(count.mtp)));
  fmt::print("\n{:.4g} GFLOP per trained token in sequences of {}\n\n",
             cost::model_flops(config, 1, double(config.train.seq_len)).total() / 1e9, config.train.seq_len);
  report::Table owners({{"memory at the peak"}, {"bytes", report::Align::Right}, {"", report::Align::Right}});
  for (size_t i = 0; i < last.plan.at_peak.size(); ++i)
    owners.add_row({std::string(program::name_of(static_cast<program::Owner>(i))),
                    fmt::format("{}", last.plan.at_peak[i]),
                    report::format_bytes(double(last.plan.at_peak[i]))});
  owners.add_rule();
  owners.add_row({"live at the peak", fmt::format("{}", last.plan.live_peak_bytes),
                  report::format_bytes(double(last.plan.live_peak_bytes))});
  owners.add_row({"arena (allocated)", fmt::format("{}", last.plan.arena_bytes),
                  report::format_bytes(double(last.plan.arena_bytes))});
  fmt::print("{}\n", owners.text());
  if (last.plan.peak_stage >= 0)
    fmt::print("peak at stage {} of {}: {}\n", last.plan.peak_stage, last.program.stages.size(),
               program::stage_name(last.program.stages[size_t(last.plan.peak_stage)]));
  fmt::print("arena / live peak {:.4f}; host waits per step: {}\n\n",
             double(last.plan.arena_bytes) / double(last.plan.live_peak_bytes), last.host_waits);
  report::Table passes({{"after"},
                        {"stages", report::Align::Right},
                        {"live peak", report::Align::Right},
                        {"arena", report::Align::Right},
                        {"arena change", report::Align::Right}});
  for (size_t i = 0; i < rows.size(); ++i)
    passes.add_row({rows[i].name, fmt::format("{}", rows[i].program.stages.size()),
                    report::format_bytes(double(rows[i].plan.live_peak_bytes)),
                    report::format_bytes(double(rows[i].plan.arena_bytes)),
                    i == 0 ? ""
                           : fmt::format("{:+.1f} %", 100.0 * (double(rows[i].plan.arena_bytes) /
                                                                   double(rows[i - 1].plan.arena_bytes) -
                                                               1))});
  fmt::print("{}", passes.text());
}

}  // namespace

void add_plan(CLI::App& app, Action& chosen) {
  auto a = std::make_shared<ConfigArgument>();
  auto json = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand("plan", "Exact memory of a training step by owner, without allocating it");
  add_config_argument(*c, *a);
  c->add_flag("--json", *json, "Machine-readable output");
  add_example(*c, "pleat plan configs/demo.toml --set recompute.modules='[\"activation\",\"norm\"]'");
  c->callback([a, json, &chosen] {
    chosen = [a, json] {
      const config::Config config = a->resolved();
      const auto rows = rows_of(config);
      if (*json)
        fmt::print("{}\n", to_json(config, rows).dump(1));
      else
        print_tables(config, rows);
      return 0;
    };
  });
}

}  // namespace pleat::apps
