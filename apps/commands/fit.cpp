// pleat fit: which techniques make a step fit a machine's memory, and which of them cost least.
#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "fit_page.h"
#include "layout/from_config.h"
#include "machine_argument.h"
#include "memory_argument.h"
#include "train/run_tokenizer.h"
#include "tune/advice.h"
#include "tune/search.h"

namespace pleat::apps {
namespace {

struct SearchArguments {
  ConfigArgument config;
  MachineArgument machine;
  MemoryArgument memory;
  tune::SpaceOptions space;
  int64_t ranks = 0;
  size_t rows = 6;
  int64_t trials = 200;
  double worth_percent = 5, time_limit_s = 120;
  std::string out;
  bool json = false, force = false;
};

void require_sense(const SearchArguments& a, const config::Config& config, const cost::Machine& machine) {
  if (machine.kind == cost::MachineKind::Gpu && config.device.kind != "cuda")
    base::fail(
        "device.kind is \"cpu\", and machine '{}' has GPUs; needed is --set device.kind=cuda (and --set "
        "model.dtype=bfloat16, what GPUs are used with), or --machine cpu",
        machine.name);
  if (machine.kind == cost::MachineKind::Cpu && config.device.kind == "cuda")
    base::fail(
        "device.kind is \"cuda\", and machine '{}' has no GPUs; needed is --set device.kind=cpu, or a "
        "machine "
        "with GPUs (`pleat machines`)",
        machine.name);
  if (a.force && a.out.empty()) base::fail("--force is for --write, which is not given");
  if (!a.out.empty() && !a.force && std::filesystem::exists(a.out))
    base::fail("--write {}: the file is there already; give another name, or --force to write over it",
               a.out);
}

int search_fit(const SearchArguments& a) {
  const auto start = std::chrono::steady_clock::now();
  schedule::Ground ground = a.machine.ground();
  a.memory.apply(ground.machine);
  const config::Config asked = a.config.load();
  require_sense(a, asked, ground.machine);
  const config::Config whole = train::with_vocabulary(asked);
  const int64_t ranks = a.ranks > 0 ? a.ranks : layout::least_ranks(config::resolve(whole));
  note_carrier(ranks);
  tune::Space space = tune::make_space(whole, ranks, a.space);
  const tune::SearchOptions options{
      .worth = a.worth_percent / 100,
      .rows = a.rows,
      .trials = a.trials,
      .deadline = start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                              std::chrono::duration<double>(a.time_limit_s))};
  const tune::Answer answer = tune::search(space, ground, options);
  std::vector<std::string> advice;
  if (answer.rows.empty()) advice = tune::what_would_fit(space, answer.nearest, ground);
  if (const std::string not_yet = tune::not_yet_advice(space, answer, ground); !not_yet.empty())
    advice.push_back(not_yet);
  if (const std::vector<tune::Found>& first = answer.rows.empty() ? answer.nearest : answer.rows;
      !first.empty())
    if (const std::string budget = tune::token_budget_advice(space, first[0], ground); !budget.empty())
      advice.push_back(budget);
  const FitQuestion question{space, ground, a.trials, a.time_limit_s};
  if (a.json)
    fmt::print("{}\n", fit_json(question, answer, advice).dump(1));
  else
    fmt::print("{}", fit_page(question, answer, advice));
  if (answer.rows.empty() && !answer.plain.measured.trains())
    base::fail("`train` takes none of the choices on device.kind = \"{}\"{}: {}", asked.device.kind,
               a.out.empty() ? "" : ", and nothing was written", answer.plain.measured.untrained);
  if (answer.rows.empty())
    base::fail_with(base::ExitCode::Hardware, "on machine '{}' the step does not fit with any choice{}{}",
                    ground.machine.name,
                    answer.complete ? "" : " that was looked at (--trials, --time-limit)",
                    a.out.empty() ? "" : "; nothing was written");
  if (!a.out.empty()) {
    // As the user wrote it: what the tokenizer says is not part of it.
    space.base.model.vocab_size = asked.model.vocab_size;
    const tune::Found& best = answer.rows[0];
    write_text(a.out,
               fit_comment(question, best, a.out) + config::to_toml(tune::configured(space, best.candidate)));
    if (!a.json) fmt::print("written: {}\n", a.out);
  }
  return 0;
}

}  // namespace

void add_fit(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<SearchArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  add_machine_argument(*c, a->machine);
  add_memory_argument(*c, a->memory);
  c->add_option("--ranks", a->ranks, "Ranks, laid out as [parallel] says (default: the fewest that can be)")
      ->check(CLI::PositiveNumber);
  c->add_flag("--exact", a->space.exact, "Only choices that leave every bit of a step as it is");
  c->add_option("--free", a->space.free,
                "A key that may change although the configuration sets it (repeatable)")
      ->allow_extra_args(false);
  c->add_option("--worth", a->worth_percent,
                "Percent of the step that a choice must save to be taken if it keeps values in fewer bits")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  c->add_option("--rows", a->rows, "Rows of the table, at most")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  c->add_option("--trials", a->trials, "Combinations that are planned and simulated for the answer, at most")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  c->add_option("--time-limit", a->time_limit_s, "Seconds after which the best that was found is the answer")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  c->add_option("--write", a->out, "A configuration to write: the first row of the table");
  c->add_flag("--force", a->force, "Write over a file that is there");
  c->add_flag("--json", a->json, "Machine-readable output");
  add_example(*c, "pleat fit configs/steps/olmoe-1b-7b.toml --machine h200 --device-memory 79GiB");
  c->callback([a, &chosen] { chosen = [a] { return search_fit(*a); }; });
}

}  // namespace pleat::apps
