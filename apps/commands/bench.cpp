#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "model/parameters.h"
#include "report/table.h"
#include "train/bench_step.h"
#include "train/memory.h"

namespace pleat::apps {
namespace {

double resident_peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Arguments {
  std::string peer_config, out, label = "pleat";
  train::BenchOptions options;
  int64_t threads = 2;
};

int run_bench(const Arguments& a) {
  const double resident_before = resident_peak_mb();
  const config::Config config = train::peer_config(a.peer_config, a.threads);
  train::ProgramChoice choice;
  choice.evaluate = false;
  train::Programs programs(config, choice);
  programs.initialize();
  const train::BenchResult r = train::bench_step(programs, a.options);
  const std::string name = a.peer_config.substr(a.peer_config.find_last_of('/') + 1);
  const nlohmann::json result = {
      {"peer", a.label},
      {"config", name.substr(0, name.rfind(".json"))},
      {"ok", true},
      {"ms_per_step", r.median_seconds * 1e3},
      {"tokens_per_s", r.tokens_per_s},
      {"threads", a.threads},
      {"loss", r.loss},
      {"model_tflops", r.model_flops / r.median_seconds / 1e12},
      {"hardware_tflops", r.hardware_flops / r.median_seconds / 1e12},
      {"gemm_share", r.gemm_share},
      {"gemm_stage_gflops", r.gemm_stage_rate / 1e9},
      {"gemm_peak_gflops", r.gemm_rate / 1e9},
      {"percent_of_gemm_peak", 100 * r.hardware_flops / r.median_seconds / r.gemm_rate},
      {"planned_MB", double(programs.train_plan().plan.arena_bytes) / 1048576},
      {"rss_growth_MB", resident_peak_mb() - resident_before},
      {"params_M", double(model::count_parameters(config, programs.table()).total) / 1e6}};
  report::Table table({{"region"}, {"ms", report::Align::Right}, {"share", report::Align::Right}});
  for (const auto& [region, seconds] : r.breakdown.regions)
    table.add_row({region, fmt::format("{:.3f}", seconds * 1e3),
                   fmt::format("{:.1f} %", 100 * seconds / r.breakdown.total)});
  fmt::print("{}", table.text());
  fmt::print(
      "matrix products: {:.1f} % of the step at {:.1f} GFLOP/s, {:.1f} % of the {:.1f} GFLOP/s measured "
      "here; whole step {:.1f} %\n",
      100 * r.gemm_share, r.gemm_stage_rate / 1e9, 100 * r.gemm_stage_rate / r.gemm_rate, r.gemm_rate / 1e9,
      100 * r.hardware_flops / r.median_seconds / r.gemm_rate);
  if (!a.out.empty()) write_text(a.out, result.dump());
  fmt::print("RESULT {}\n", result.dump());
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure against a ceiling or a peer");
  bench->require_subcommand(1);
  add_example(*bench, "pleat bench step --peer-config bench/configs/cpu-small.json");
  auto a = std::make_shared<Arguments>();
  CLI::App* c =
      bench->add_subcommand("step", "Training steps on random tokens, configured like the peers' benchmark");
  c->add_option("--peer-config", a->peer_config, "Model in the peers' JSON format")->required();
  c->add_option("--steps", a->options.steps, "Timed steps")->check(CLI::PositiveNumber);
  c->add_option("--seconds", a->options.seconds, "Stop after this many seconds of timed steps (0: no limit)");
  c->add_option("--threads", a->threads, "Worker threads")->check(CLI::PositiveNumber);
  c->add_option("--out", a->out, "Also write the result line as JSON");
  c->add_option("--label", a->label, "Name of this entry");
  add_example(*c, "pleat bench step --peer-config bench/configs/cpu-small.json --steps 20");
  c->callback([a, &chosen] { chosen = [a] { return run_bench(*a); }; });
}

}  // namespace pleat::apps
