#include <CLI/CLI.hpp>

#include "command.h"
#include "report/table.h"
#include "train/bench_step.h"

namespace pleat::apps {

void add_trace(CLI::App& app, Action& chosen) {
  struct Arguments {
    ConfigArgument config;
    std::string out = "trace.json", svg;
    int64_t steps = 3;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* c =
      app.add_subcommand("trace", "Run a few steps on random tokens and write the timeline of the last one");
  add_config_argument(*c, a->config);
  c->add_option("--out", a->out, "Chrome / Perfetto JSON to write");
  c->add_option("--svg", a->svg, "Also draw the timeline as a picture");
  c->add_option("--steps", a->steps, "Timed steps")->check(CLI::PositiveNumber);
  add_example(*c, "pleat trace configs/tiny.toml --out trace.json --svg trace.svg");
  c->callback([a, &chosen] {
    chosen = [a] {
      train::ProgramChoice choice;
      choice.evaluate = false;
      train::Programs programs(a->config.resolved(), choice);
      programs.initialize();
      train::BenchOptions options;
      options.steps = a->steps;
      const train::BenchResult result = train::bench_step(programs, options);
      const program::Program& program = programs.train_plan().program;
      write_text(a->out, interpret::to_chrome_json(program, result.timeline));
      if (!a->svg.empty()) write_text(a->svg, interpret::to_svg(program, result.timeline));
      report::Table table({{"region"}, {"ms", report::Align::Right}, {"share", report::Align::Right}});
      for (const auto& [region, seconds] : result.breakdown.regions)
        table.add_row({region, fmt::format("{:.3f}", seconds * 1e3),
                       fmt::format("{:.1f} %", 100 * seconds / result.breakdown.total)});
      table.add_row({"gaps", fmt::format("{:.3f}", result.breakdown.gaps * 1e3),
                     fmt::format("{:.1f} %", 100 * result.breakdown.gaps / result.breakdown.total)});
      fmt::print("{}{} stages in {:.3f} ms, written to {}\n", table.text(), program.stages.size(),
                 result.breakdown.total * 1e3, a->out);
      return 0;
    };
  });
}

}  // namespace pleat::apps
