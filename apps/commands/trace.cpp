#include <CLI/CLI.hpp>

#include "command.h"
#include "report/time_shares.h"
#include "train/bench_step.h"

namespace pleat::apps {

void add_trace(CLI::App& command, Action& chosen) {
  struct TraceArguments {
    ConfigArgument config;
    std::string out = "trace.json", svg;
    int64_t steps = 3;
  };
  auto a = std::make_shared<TraceArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_option("--out", a->out, "Chrome / Perfetto JSON to write");
  c->add_option("--svg", a->svg, "Also draw the timeline as a picture");
  c->add_option("--steps", a->steps, "Timed steps")->capture_default_str()->check(CLI::PositiveNumber);
  add_example(*c, "pleat trace configs/tiny.toml --out trace.json --svg trace.svg");
  c->callback([a, &chosen] {
    chosen = [a] {
      runtime::ProgramChoice choice;
      choice.evaluate = false;
      runtime::Programs programs(a->config.resolved(), choice);
      programs.initialize();
      train::BenchOptions options;
      options.steps = a->steps;
      const train::BenchResult result = train::bench_step(programs, options);
      const program::Program& program = programs.train_plan().program;
      write_text(a->out, interpret::to_chrome_json(program, result.timeline));
      if (!a->svg.empty()) write_text(a->svg, interpret::to_svg(program, result.timeline));
      auto rows = result.breakdown.regions;
      rows.emplace_back("gaps", result.breakdown.gaps);
      fmt::print("{}{} stages in {:.3f} ms, written to {}\n",
                 report::time_shares("region", rows, result.breakdown.total), program.stages.size(),
                 result.breakdown.total * 1e3, a->out);
      return 0;
    };
  });
}

}  // namespace pleat::apps
