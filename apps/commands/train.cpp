#include <CLI/CLI.hpp>

#include "command.h"
#include "train/loop.h"

namespace pleat::apps {

void add_train(CLI::App& command, Action& chosen) {
  struct TrainArguments {
    ConfigArgument config;
    train::LoopOptions options;
    int64_t fault_step = 0;
  };
  auto a = std::make_shared<TrainArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_flag("--quiet", a->options.quiet, "Print nothing; files are written all the same");
  c->add_option(
       "--ranks", a->options.ranks,
       "Run this many ranks as threads of this process, laid out by [parallel]. Without it the world is "
       "the launcher's: mpirun, srun, or one rank")
      ->check(CLI::Range(1, 1024));
  // For tests of stopping, of refused steps and of ranks that fail; not for people.
  c->add_option("--stop-after", a->options.stop_after)->group("");
  c->add_option("--fault-step", a->fault_step)->group("");
  c->add_option("--inject", a->options.inject)->group("");
  add_example(*c, "pleat train configs/demo.toml --set train.steps=200 --set log.run_dir='\"runs/first\"'");
  c->callback([a, &chosen] {
    chosen = [a] {
      if (a->fault_step > 0) a->options.fault_step = a->fault_step;
      return static_cast<int>(train::run_training(a->config.load(), a->options).code);
    };
  });
}

}  // namespace pleat::apps
