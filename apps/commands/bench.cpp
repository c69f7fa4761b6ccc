#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench_kernels.h"
#include "command.h"
#include "cost/flops.h"
#include "device/cuda/cuda.h"
#include "kernels/cuda/choices.h"
#include "model/parameters.h"
#include "report/table.h"
#include "report/time_shares.h"
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
  std::vector<std::string> sets;
  train::BenchOptions options;
  int64_t threads = 2;
};

// Where the time goes, by operation and phase; lanes that run side by side are counted both.
void print_operations(const program::Program& program, const interpret::Timeline& timeline, int64_t seq_len) {
  struct Sum {
    double seconds = 0, flops = 0;
    int64_t count = 0;
  };
  std::map<std::string, Sum> sums;
  for (const interpret::Span& span : timeline.spans) {
    const program::Stage& stage = program.stages[static_cast<size_t>(span.stage)];
    Sum& sum = sums[fmt::format("{} {}", program::name_of(stage.phase), program::name_of(stage.op))];
    sum.seconds += double(span.end_ns - span.start_ns) / 1e9;
    sum.flops += cost::stage_flops(program, stage, seq_len);
    ++sum.count;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& x, const auto& y) { return x.second.seconds > y.second.seconds; });
  report::Table table({{"operation"},
                       {"times", report::Align::Right},
                       {"ms", report::Align::Right},
                       {"us each", report::Align::Right},
                       {"TFLOP/s", report::Align::Right}});
  for (const auto& [name, sum] : rows) {
    if (sum.seconds < 1e-3 * rows.front().second.seconds) continue;
    table.add_row({name, std::to_string(sum.count), fmt::format("{:.3f}", sum.seconds * 1e3),
                   fmt::format("{:.1f}", sum.seconds * 1e6 / double(sum.count)),
                   sum.flops > 1e9 ? fmt::format("{:.0f}", sum.flops / sum.seconds / 1e12) : ""});
  }
  fmt::print("{}", table.text());
}

int run_bench(const Arguments& a) {
  const double resident_before = resident_peak_mb();
  config::Config config = train::peer_config(a.peer_config, a.threads);
  if (!a.sets.empty())
    config = config::resolve(config::parse(config::to_toml(config), a.sets, a.peer_config));
  train::ProgramChoice choice;
  choice.evaluate = false;
  train::Programs programs(config, choice);
  programs.initialize();
  const bool gpu = programs.machine() != nullptr;
  int64_t device_bytes = 0;
  if (gpu) {
    const device::cuda::Facts facts = device::cuda::facts();
    device_bytes = facts.memory_bytes - facts.free_bytes;
    fmt::print("{}, {} SMs, driver {}, CUDA {}, cuBLASLt {}, cuDNN {}\n", facts.name, facts.num_sms,
               facts.driver, facts.runtime, facts.cublas, facts.cudnn);
    for (const std::string& line : kernels::cuda_choices()) fmt::print("  {}\n", line);
  }
  const train::BenchResult r = train::bench_step(programs, a.options);
  const std::string name = a.peer_config.substr(a.peer_config.find_last_of('/') + 1);
  double optimizer_seconds = 0;
  for (const auto& [region, seconds] : r.breakdown.regions)
    if (region == "optimizer") optimizer_seconds = seconds;
  nlohmann::json result = {
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
  result["micro_batch"] = config.train.micro_batch;
  result["grad_accum"] = config.train.num_microbatches;
  result["mfu_pct_of_989"] = 100 * r.model_flops / r.median_seconds / 989e12;
  result["ms_opt"] = optimizer_seconds * 1e3;
  result["ms_fwd_bwd"] = (r.median_seconds - optimizer_seconds) * 1e3;
  result["peak_mem_GB"] = gpu ? double(device_bytes) / 1e9 : result["rss_growth_MB"].get<double>() / 1e3;
  result["host_gap_pct"] = r.host_gap_percent ? nlohmann::json(*r.host_gap_percent) : nlohmann::json(nullptr);
  result["path"] = {gpu ? "CUDA, one graph per step" : "CPU"};
  fmt::print("{}", report::time_shares("region", r.breakdown.regions, r.breakdown.total));
  if (gpu) print_operations(programs.train_plan().program, r.timeline, config.train.seq_len);
  fmt::print(
      "matrix products: {:.1f} % of the step at {:.1f} GFLOP/s, {:.1f} % of the {:.1f} GFLOP/s measured "
      "here; whole step {:.1f} %\n",
      100 * r.gemm_share, r.gemm_stage_rate / 1e9, 100 * r.gemm_stage_rate / r.gemm_rate, r.gemm_rate / 1e9,
      100 * r.hardware_flops / r.median_seconds / r.gemm_rate);
  if (r.host_gap_percent)
    fmt::print("host gaps: {:.2f} % of the step; the device is at work on its graph the rest of the time\n",
               *r.host_gap_percent);
  if (!a.out.empty()) write_text(a.out, result.dump());
  fmt::print("RESULT {}\n", result.dump());
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "Measure against a ceiling or a peer");
  bench->require_subcommand(1);
  add_example(*bench, "pleat bench step --peer-config bench/configs/cpu-small.json");
  add_bench_kernels(*bench, chosen);
  auto a = std::make_shared<Arguments>();
  CLI::App* c =
      bench->add_subcommand("step", "Training steps on random tokens, configured like the peers' benchmark");
  c->add_option("--peer-config", a->peer_config, "Model in the peers' JSON format")->required();
  c->add_option("--steps", a->options.steps, "Timed steps")->check(CLI::PositiveNumber);
  c->add_option("--seconds", a->options.seconds, "Stop after this many seconds of timed steps (0: no limit)");
  c->add_option("--threads", a->threads, "Worker threads")->check(CLI::PositiveNumber);
  c->add_option("--set", a->sets, "Override a key of the configuration: section.key=value (repeatable)")
      ->allow_extra_args(false);
  c->add_option("--out", a->out, "Also write the result line as JSON");
  c->add_option("--label", a->label, "Name of this entry");
  add_example(*c, "pleat bench step --peer-config bench/configs/cpu-small.json --steps 20");
  c->callback([a, &chosen] { chosen = [a] { return run_bench(*a); }; });
}

}  // namespace pleat::apps
