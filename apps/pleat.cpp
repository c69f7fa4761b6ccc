// One binary, one sub-command per job.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "command_table.h"
#include "guard.h"
#include "parse_fault.h"
#include "schedule/build.h"
#include "schedule/ranks.h"
#include "train/launch.h"
#include "train/run_tokenizer.h"
#include "version.h"

namespace pleat::apps {

config::Config ConfigArgument::load() const { return config::load(path, sets); }
config::Config ConfigArgument::resolved() const { return config::resolve(train::with_vocabulary(load())); }

void add_config_argument(CLI::App& command, ConfigArgument& argument) {
  command.add_option("config", argument.path, "Run configuration (TOML), or the folder of a run")->required();
  command
      .add_option(
          "--set", argument.sets,
          "Override a key: section.key=value; section.key= takes it out, as if it were not set (repeatable)")
      ->allow_extra_args(false);
}

void note_carrier(int64_t num_ranks) {
  if (const std::string fault = train::carrier_fault(num_ranks); !fault.empty())
    fmt::print(stderr, "note: `pleat train` would refuse this many ranks: {}\n", fault);
}

void note_refusal(const config::Config& config, const layout::Layout& layout) {
  try {
    schedule::require_writable(config, schedule::fitted_mesh(config, layout));
    schedule::roles_of(config);
  } catch (const base::Error& e) {
    fmt::print(stderr, "note: `pleat plan` and `pleat train` would refuse this: {}\n", e.what());
  }
}

void add_model_argument(CLI::App& command, ModelArgument& a) {
  command.add_option("source", a.folder, "Run folder (log.run_dir) or Hugging Face model folder")->required();
  command.add_option("--tokenizer", a.options.tokenizer,
                     "'byte', a tokenizer file or a folder with one (default: the source's own)");
  command.add_option("--step", a.options.step, "Checkpoint of a run: a step, best, or newest (the default)");
  command.add_option("--dtype", a.options.dtype, "f32 or f64 (default: the run's, f32 for a model folder)")
      ->transform(CLI::Transformer({{"f32", "float32"}, {"f64", "float64"}}))
      ->check(CLI::IsMember({"float32", "float64"}));
  command.add_option("--threads", a.options.threads, "Worker threads (0: all cores)")
      ->check(CLI::NonNegativeNumber);
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) base::fail_with(base::ExitCode::Storage, "cannot write '{}'", path);
}

void add_example(CLI::App& command, const std::string& example) { command.footer("Example:\n  " + example); }

namespace {

// Nothing but the name of the program, or of a group of commands.
bool needs_command(const CLI::App& app, int argc) {
  if (argc == 1) return true;
  const auto typed = app.get_subcommands();
  return argc == 2 && !typed.empty() &&
         !typed.back()->get_subcommands([](const CLI::App*) { return true; }).empty();
}

std::string what_there_is(const CLI::App& app) {
  std::string help = app.help();
  while (help.ends_with('\n')) help.pop_back();
  const std::string group = typed_command(app).substr(std::string_view("pleat").size());
  return fmt::format("needed is a sub-command; `pleat help{} SUB-COMMAND` explains it\n\n{}", group, help);
}

int run_command(int argc, char** argv) {
  CLI::App app{
      "Pleat trains Mixture-of-Experts language models: a training step is a program that is checked, "
      "planned,\n"
      "printed, traced and run.",
      "pleat"};
  app.require_subcommand(1);
  add_example(app, "pleat train configs/demo.toml --set train.steps=100");
  Action chosen;
  add_commands(app, chosen);
  add_version(app);
  std::vector<std::string> names;
  for (const Command& command : commands())
    if (std::string_view(command.name).find(' ') == std::string_view::npos) names.push_back(command.name);
  const auto refuse = [](const std::string& why) {
    say_error(why);
    return static_cast<int>(base::ExitCode::BadInput);
  };
  // The parser would only say that a sub-command is missing.
  if (argc > 1 && argv[1][0] != '-' && std::find(names.begin(), names.end(), argv[1]) == names.end())
    return refuse(
        fmt::format("there is no sub-command '{}'; needed one of: {}", argv[1], fmt::join(names, ", ")));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    std::ostringstream out, err;
    if (app.exit(e, out, err) != 0)
      return refuse(needs_command(app, argc) ? what_there_is(app) : parse_fault(app, e));
    fmt::print("{}", out.str());
    return 0;
  }
  return chosen();
}

}  // namespace
}  // namespace pleat::apps

int main(int argc, char** argv) {
  return pleat::apps::guarded([&] { return pleat::apps::run_command(argc, argv); });
}
