#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "interpret/check/check.h"
#include "interpret/print/print.h"
#include "model/parameters.h"
#include "schedule/build.h"
#include "schedule/pass/pass.h"

namespace pleat::apps {

void add_explain(CLI::App& app, Action& chosen) {
  struct Arguments {
    ConfigArgument config;
    std::string which = "train";
    bool stages_only = false;
  };
  auto a = std::make_shared<Arguments>();
  CLI::App* c = app.add_subcommand("explain", "Print the program a run would execute, stage by stage");
  add_config_argument(*c, a->config);
  c->add_option("--program", a->which, "train, evaluate or logits")
      ->check(CLI::IsMember({"train", "evaluate", "logits"}));
  c->add_flag("--stages-only", a->stages_only, "Leave out lanes, attributes and values");
  add_example(*c, "pleat explain configs/tiny.toml --stages-only");
  c->callback([a, &chosen] {
    chosen = [a] {
      const config::Config config = a->config.resolved();
      const auto table = model::make_parameters(config);
      program::Program program =
          a->which == "train" ? schedule::apply_passes(schedule::build_training_step(config, table), config)
          : a->which == "evaluate" ? schedule::build_evaluation(config, table)
                                   : schedule::build_logits(config, table);
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

void add_explain_config(CLI::App& app, Action& chosen) {
  auto key = std::make_shared<std::string>();
  CLI::App* c =
      app.add_subcommand("explain-config", "Meaning, default and range of a configuration key or section");
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
