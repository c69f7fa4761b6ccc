// pleat bench costs: how long every stage of a training step takes here, into a file that estimates are made from.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/cost_bench.h"
#include "command.h"
#include "report/format.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

struct BenchCostsArguments {
  ConfigArgument config;
  std::string out;
  bench::CostBenchOptions options;
  bool json = false;
};

void print_costs(const cost::CostFile& file, const std::vector<bench::KindTime>& kinds) {
  constexpr size_t kShown = 12;
  double sum = 0;
  for (const bench::KindTime& k : kinds) sum += k.ns;
  const auto row = [&](const std::string& name, int64_t stages, double ns) -> std::vector<std::string> {
    return {name, std::to_string(stages), report::format_microseconds(ns / 1e3),
            report::format_microseconds(ns / 1e3 / double(std::max<int64_t>(stages, 1))),
            fmt::format("{:.1f}", 100 * ns / sum)};
  };
  report::Table table({{"kernel"},
                       {"stages", report::Align::Right},
                       {"all", report::Align::Right},
                       {"each", report::Align::Right},
                       {"%", report::Align::Right}});
  bench::KindTime rest;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (i < kShown)
      table.add_row(row(kinds[i].name, kinds[i].stages, kinds[i].ns));
    else
      rest.stages += kinds[i].stages, rest.ns += kinds[i].ns;
  }
  if (rest.stages > 0)
    table.add_row(row(fmt::format("{} others", kinds.size() - kShown), rest.stages, rest.ns));
  fmt::print("{}\n{}", describe(file.machine), table.text());
  for (const cost::StepTime& s : file.steps)
    fmt::print("step{}: {} measured, {} in its stages ({:.1f} %)\n",
               s.ranks > 1 ? fmt::format(" of pipeline stage {}, {} ranks", s.pipeline_rank, s.ranks) : "",
               report::format_microseconds(s.ns / 1e3), report::format_microseconds(s.stages_ns / 1e3),
               100 * s.stages_ns / s.ns);
  if (!file.crowd.empty())
    fmt::print("all {} cores at work: {:.2f} times as long\n", file.crowd.size(), file.crowd.back());
  fmt::print("{} stages of different sizes, {} exchanges", file.entries.size(), file.links.size());
}

int run_costs(BenchCostsArguments a) {
  const config::Config config = a.config.resolved();
  // Before, not after, minutes of measuring.
  if (const std::filesystem::path folder = std::filesystem::path(a.out).parent_path();
      !folder.empty() && !std::filesystem::is_directory(folder))
    base::fail("--out '{}': there is no folder '{}'", a.out, folder.string());
  // A run folder may end in a slash.
  a.options.name =
      (std::filesystem::path(a.config.path) / "x").parent_path().lexically_normal().stem().string();
  a.options.note = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  const cost::CostFile file = bench::measure_costs(config, a.options);
  cost::write_costs(a.out, file);
  const std::vector<bench::KindTime> kinds = bench::kind_times(config, a.options.ranks, file);
  if (!a.json) {
    print_costs(file, kinds);
    fmt::print(": {}\n", a.out);
    return 0;
  }
  nlohmann::json kernels = nlohmann::json::array(), steps = nlohmann::json::array();
  for (const bench::KindTime& k : kinds)
    kernels.push_back({{"kernel", k.name}, {"stages", k.stages}, {"ns", k.ns}});
  for (const cost::StepTime& s : file.steps)
    steps.push_back(
        {{"ranks", s.ranks}, {"pipeline_rank", s.pipeline_rank}, {"ns", s.ns}, {"stages_ns", s.stages_ns}});
  const nlohmann::json result = {{"file", a.out},
                                 {"machine", describe(file.machine)},
                                 {"config", file.config},
                                 {"entries", file.entries.size()},
                                 {"links", file.links.size()},
                                 {"crowd", file.crowd},
                                 {"kernels", kernels},
                                 {"steps", steps}};
  fmt::print("{}\n", result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  return 0;
}

}  // namespace

void add_bench_costs(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<BenchCostsArguments>();
  CLI::App* c = &command;
  add_config_argument(*c, a->config);
  c->add_option("--out", a->out, "The file of costs to write (docs/formats.md)")->required();
  c->add_option(
       "--ranks", a->options.ranks,
       "Measure the ranks of a layout of so many, one after the other, each by itself, with its part "
       "of device.threads")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  c->add_option("--steps", a->options.steps, "Timed steps; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  c->add_flag(
      "--neighbours,!--no-neighbours", a->options.neighbours,
      "Also measure short models with one size halved or doubled, so that other sizes can be estimated "
      "(the default)");
  c->add_flag("--crowd,!--no-crowd", a->options.crowd,
              "Also measure how cores of the CPU that work at once hinder each other (the default)");
  c->add_flag("--links,!--no-links", a->options.links,
              "Also measure exchanges between ranks that are threads (the default; on the CPU)");
  c->add_flag("--json", a->json, "Print JSON instead of the table");
  add_example(*c,
              "pleat bench costs configs/tiny.toml --out costs.json\n"
              "  pleat bench costs configs/tiny.toml --out costs.json --ranks 2 --set parallel.ep=2 "
              "--set device.threads=1");
  c->callback([a, &chosen] { chosen = [a] { return run_costs(*a); }; });
}

}  // namespace pleat::apps
