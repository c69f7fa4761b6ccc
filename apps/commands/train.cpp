#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "commands/model_meter.h"
#include "exchange/initial_weights.h"
#include "train/loop.h"

namespace pleat::apps {

void add_train(CLI::App& command, Action& chosen) {
  struct TrainArguments {
    ConfigArgument config;
    train::LoopOptions options;
    int64_t fault_step = 0;
    bool no_lock = false;
    exchange::InitOptions init;
  };
  auto a = std::make_shared<TrainArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_flag("--quiet", a->options.quiet, "Print nothing; files are written all the same");
  c->add_flag("--verbose", a->options.verbose,
              "Print every setting with what was asked, what is used and why, and the classes of parameters");
  c->add_flag("--allow-change", a->options.allow_change,
              "Go on although settings changed that decide how the run trains (explain-config says which)");
  c->add_option("--init", a->init.source,
                "Start a new run from the weights of a run folder or a Hugging Face model folder; model and "
                "tokenizer come from there where CONFIG leaves them out");
  c->add_option("--step", a->init.step, "With --init RUN: a step, best, or newest, as without it");
  c->add_flag(
      "--no-lock", a->no_lock,
      "Do not lock the run folder: for file systems without locks, where nobody else may train in it");
  c->add_option(
       "--ranks", a->options.ranks,
       "Run this many ranks as threads of this process, laid out by [parallel]. Without it the world is "
       "the launcher's: 'pleat launch', srun, mpirun, torchrun's variables, or one rank")
      ->check(CLI::Range(1, 1024));
  // For tests of stopping, of refused steps and of ranks that fail; not for people.
  c->add_option("--stop-after", a->options.stop_after)->group("");
  c->add_option("--fault-step", a->fault_step)->group("");
  c->add_option("--inject", a->options.inject)->group("");
  add_example(*c, "pleat train configs/demo.toml --set train.steps=200 --set log.run_dir='\"runs/first\"'");
  c->callback([a, &chosen] {
    chosen = [a] {
      a->options.lock = !a->no_lock;
      if (a->fault_step > 0) a->options.fault_step = a->fault_step;
      if (a->init.source.empty() && !a->init.step.empty())
        base::fail("--step {} chooses the weights of --init, which is not given", a->init.step);
      if (a->init.source.empty())
        return static_cast<int>(train::run_training(a->config.load(), a->options).code);
      const exchange::InitialWeights weights(a->init, a->config.path, a->config.sets);
      if (!a->options.quiet) fmt::print(stderr, "{}\n", weights.remark());
      a->options.write_origin = [&](const config::Config& used) { weights.write_origin(used); };
      a->options.write_start = [&](const config::Config& used) {
        if (a->options.quiet) return weights.write(used, quiet_watch());
        ModelMeter meter("writing the start", "", true);
        weights.write(used, meter.watch());
      };
      return static_cast<int>(train::run_training(weights.config(), a->options).code);
    };
  });
}

}  // namespace pleat::apps
