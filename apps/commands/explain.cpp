#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "explain_ledger.h"
#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "interpret/simulate/grid.h"
#include "layout/from_config.h"
#include "model/parameters.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"
#include "schedule/run_together.h"

namespace pleat::apps {

namespace {

struct ExplainArguments {
  ConfigArgument config;
  std::string which = "train", svg, machine;
  bool stages_only = false, grid = false, ledger = false, json = false;
  int64_t ranks = 0, stage = 0;
};

// The programs of the ranks, which run together.
schedule::RankPrograms ranks_of(const config::Config& config, int64_t num_ranks) {
  schedule::RankPrograms ranks = schedule::build_ranks(config, num_ranks);
  schedule::require_runs_together(interpret::network_of_roles(ranks.programs),
                                  schedule::meeting_of(config, num_ranks));
  return ranks;
}

program::Program of_stage(const config::Config& config, const ExplainArguments& a) {
  if (a.which != "train") base::fail("--ranks prints the training step, got --program {}", a.which);
  auto ranks = ranks_of(config, a.ranks);
  if (a.stage >= static_cast<int64_t>(ranks.programs.size()))
    base::fail("--stage {}: the pipeline has stages 0 to {}", a.stage, ranks.programs.size() - 1);
  return std::move(ranks.programs[static_cast<size_t>(a.stage)]);
}

}  // namespace

void add_explain(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<ExplainArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_option("--program", a->which, "train, evaluate or logits")
      ->capture_default_str()
      ->check(CLI::IsMember({"train", "evaluate", "logits"}));
  c->add_flag("--stages-only", a->stages_only, "Leave out lanes, attributes and values");
  c->add_flag("--grid", a->grid, "Draw which pipeline rank computes what at which time instead");
  c->add_flag("--ledger", a->ledger,
              "Instead, what every pass moved: memory at the peak, bytes sent, simulated time");
  c->add_option("--machine", a->machine,
                "With --ledger: whose times, a name or a .toml file (default h200; b200 for recipe nvfp4)");
  c->add_flag("--json", a->json, "With --ledger: machine-readable output");
  c->add_option("--svg", a->svg, "With --grid: write it as a picture to this file");
  c->add_option("--ranks", a->ranks,
                "For this many ranks, laid out as [parallel] says (default: the fewest that can be)")
      ->check(CLI::PositiveNumber);
  c->add_option("--stage", a->stage, "Whose program to print, a pipeline rank")
      ->check(CLI::NonNegativeNumber);
  add_example(*c,
              "pleat explain configs/tiny.toml --stages-only\n"
              "  pleat explain configs/tiny.toml --grid --ranks 2 --set parallel.pp=2 "
              "--set train.num_microbatches=4\n"
              "  pleat explain configs/tiny.toml --ledger --set 'recompute.modules=[\"norm\"]'");
  c->callback([a, &chosen] {
    chosen = [a] {
      const config::Config config = a->config.resolved();
      if (a->ranks == 0 && a->which == "train") {
        const int64_t least = layout::least_ranks(config);
        if (least > 1 || a->grid || a->ledger) a->ranks = least;
      }
      if (a->ranks > 0) note_carrier(a->ranks);
      if (a->json && !a->ledger) base::fail("--json is a form of --ledger: give both");
      if (!a->machine.empty() && !a->ledger) base::fail("--machine is for the times of --ledger: give both");
      if (a->ledger) {
        if (a->which != "train") base::fail("--ledger reads the training step, got --program {}", a->which);
        if (a->grid || a->stages_only)
          base::fail("--ledger prints no program: leave out --grid and --stages-only");
        explain_ledger(config, a->ranks, a->stage, a->machine, a->json);
        return 0;
      }
      if (a->grid) {
        if (a->which != "train") base::fail("--grid draws the training step, got --program {}", a->which);
        const auto ranks = ranks_of(config, a->ranks);
        const interpret::Network network = interpret::network_of_roles(ranks.programs);
        if (a->svg.empty())
          fmt::print("{}", interpret::grid(network));
        else
          write_text(a->svg, interpret::grid_svg(network));
        return 0;
      }
      if (!a->svg.empty()) base::fail("--svg draws what --grid shows: give both");
      if (a->ranks == 0 && a->which == "train")
        schedule::fitted_mesh(config, schedule::layout_of(config, 1));  // throws what does not fit
      const auto table = model::make_parameters(config);
      const auto passed = [&](program::Program p) { return schedule::apply_passes(std::move(p), config); };
      program::Program program = a->ranks > 0          ? of_stage(config, *a)
                                 : a->which == "train" ? passed(schedule::build_training_step(config, table))
                                 : a->which == "evaluate" ? passed(schedule::build_evaluation(config, table))
                                                          : passed(schedule::build_logits(config, table));
      const interpret::CheckReport report = interpret::check(program);
      interpret::require_ok(report, "program " + program.name);
      const std::string text = interpret::print(program);
      if (!a->stages_only) {
        fmt::print("{}", text);
      } else {
        for (size_t at = 0; at < text.size();) {
          const size_t end = text.find('\n', at);
          const std::string_view line(text.data() + at, end - at);
          if (!line.starts_with("value ") && !line.starts_with("attrs ") && !line.starts_with("lane ") &&
              !line.starts_with("program "))
            fmt::print("{}\n", line);
          at = end + 1;
        }
      }
      fmt::print("# {} stages, {} values, {} host waits per step\n", program.stages.size(),
                 program.values.size(), report.host_waits);
      return 0;
    };
  });
}

void add_explain_config(CLI::App& command, Action& chosen) {
  auto key = std::make_shared<std::string>();
  CLI::App* c = &command;
  c->add_option("key", *key,
                "A key such as moe.top_k, a section such as moe, or nothing for the list of sections");
  add_example(*c, "pleat explain-config moe.load_balancing");
  c->callback([key, &chosen] {
    chosen = [key] {
      fmt::print("{}", config::explain(*key));
      return 0;
    };
  });
}

}  // namespace pleat::apps
