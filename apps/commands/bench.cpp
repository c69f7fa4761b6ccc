#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/posix_vfs.h"
#include "base/replace_file.h"
#include "bench/breakdown_svg.h"
#include "command.h"
#include "device/cuda/code_rate.h"
#include "device/cuda/context.h"
#include "device/cuda/cuda.h"
#include "interpret/run/device_memory.h"
#include "kernels/cuda/choices.h"
#include "model/parameters.h"
#include "operation_table.h"
#include "report/table.h"
#include "report/time_shares.h"
#include "train/bench_step.h"
#include "train/matmul_choices.h"
#include "train/memory.h"

namespace pleat::apps {
namespace {

double resident_peak_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct BenchArguments {
  std::string config, peer_config, choices, out, svg, label = "pleat";
  std::vector<std::string> sets;
  train::BenchOptions options;
  int64_t threads = 0;
  double skew = 0;
};

config::Config bench_config(const BenchArguments& a) {
  std::vector<std::string> sets = a.sets;
  if (a.skew > 0) {
    sets.push_back("moe.force_routing=\"loaded\"");
    sets.push_back(fmt::format("moe.force_load={}", a.skew));
  }
  if (!a.peer_config.empty()) {
    const config::Config config = train::peer_config(a.peer_config, a.threads);
    return sets.empty() ? config
                        : config::resolve(config::parse(config::to_toml(config), sets, a.peer_config));
  }
  if (a.threads > 0) sets.push_back(fmt::format("device.threads={}", a.threads));
  return ConfigArgument{a.config, sets}.resolved();
}

// The algorithms of dense products from `path`, so that two runs multiply alike. Returns whether there is such a
// file.
bool take_choices(const std::string& path) {
  if (path.empty() || !std::filesystem::exists(path)) return false;
  base::PosixVfs disk;
  const train::TakenChoices taken =
      take(train::choices_from_json(base::read_file(disk, path, train::kMaxMatmulChoicesBytes), path),
           train::matmul_machine(), path);
  if (taken.use.empty()) base::fail("--choices: {}", taken.line);
  kernels::use_matmul_choices(taken.use);
  return true;
}

int run_bench(const BenchArguments& a) {
  const double resident_before = resident_peak_mb();
  if (a.config.empty() == a.peer_config.empty())
    base::fail("bench step needs a configuration: CONFIG (TOML) or --peer-config FILE (JSON), one of them");
  const config::Config config = bench_config(a);
  runtime::ProgramChoice choice;
  choice.evaluate = false;
  const bool gpu = config.device.kind == "cuda";
  bench::Ceilings ceilings;
  if (gpu) {  // both before the arena takes the memory
    device::cuda::context_bytes();
    ceilings.copy = device::cuda::measure_copy_rate();
    if (config.precision.recipe == "fp8") ceilings.codes = device::cuda::measure_codes_rate();
  }
  if (!gpu && !a.choices.empty())
    base::fail("--choices is about the products of a GPU; this runs on the CPU");
  const bool chosen = take_choices(a.choices);
  runtime::Programs programs(config, choice);
  programs.initialize();
  if (!chosen && !a.choices.empty()) base::replace_file(a.choices, to_json(train::current_choices()));
  if (gpu) {
    const device::cuda::Facts facts = device::cuda::facts();
    fmt::print("{}, {} SMs, driver {}, CUDA {}, cuBLASLt {}, cuDNN {}\n", facts.name, facts.num_sms,
               facts.driver, facts.runtime, facts.cublas, facts.cudnn);
    for (const std::string& line : kernels::cuda_choices()) fmt::print("  {}\n", line);
  }
  const train::BenchResult r = train::bench_step(programs, a.options);
  const std::string name = std::filesystem::path(a.config.empty() ? a.peer_config : a.config).stem().string();
  double optimizer_seconds = 0;
  for (const auto& [region, seconds] : r.breakdown.regions)
    if (region == "optimizer") optimizer_seconds = seconds;
  nlohmann::json result = {
      {"peer", a.label},
      {"config", name},
      {"ok", true},
      {"ms_per_step", r.median_seconds * 1e3},
      {"tokens_per_s", r.tokens_per_s},
      {"threads", config.device.threads},
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
  if (gpu) {
    // Nothing is allocated once the step is bound, so what is taken now is the peak.
    const device::cuda::Facts facts = device::cuda::facts();
    const int64_t used = facts.memory_bytes - facts.free_bytes;
    const interpret::DeviceMemory planned =  // what `pleat plan` says on this machine
        interpret::device_memory(programs.train_plan().plan);
    const double difference = 100 * (double(used) / double(planned.total()) - 1);
    result["planned_total_GB"] = double(planned.total()) / 1e9;
    result["planned_context_GB"] = double(planned.context_bytes) / 1e9;
    result["measured_GB"] = double(used) / 1e9;
    result["memory_difference_pct"] = difference;
    result["peak_mem_GB"] = result["measured_GB"];
    fmt::print("GPU memory: planned {:.3f} GB ({}), measured {:.3f} GB, {:+.2f} %\n",
               double(planned.total()) / 1e9, interpret::describe(planned), double(used) / 1e9, difference);
  } else {
    result["peak_mem_GB"] = result["rss_growth_MB"].get<double>() / 1e3;
  }
  result["host_gap_pct"] = r.host_gap_percent ? nlohmann::json(*r.host_gap_percent) : nlohmann::json(nullptr);
  result["skew"] = a.skew;
  result["load_max_over_mean"] = r.max_over_mean;
  result["path"] = {gpu ? "CUDA, one graph per step" : "CPU"};
  fmt::print("{}", report::time_shares("region", r.breakdown.regions, r.breakdown.total));
  ceilings.gemm = r.gemm_rate;
  const auto operations = bench::operation_times(programs.train_plan().program, r.timeline, ceilings);
  result["operations"] = operations_json(operations);
  if (gpu) fmt::print("{}", operation_table(operations));
  if (!a.svg.empty())
    write_text(a.svg, bench::breakdown_svg(operations, fmt::format("{}: one training step, {:.2f} ms",
                                                                   result["config"].get<std::string>(),
                                                                   r.median_seconds * 1e3)));
  if (r.max_over_mean > 0)
    fmt::print("load of the experts: max/mean {:.3f}{}\n", r.max_over_mean,
               a.skew > 0 ? fmt::format(", forced to {:g}", a.skew) : "");
  fmt::print(
      "matrix products: {:.1f} % of the step at {:.1f} GFLOP/s, {:.1f} % of the {:.1f} GFLOP/s measured "
      "here; whole step {:.1f} %\n",
      100 * r.gemm_share, r.gemm_stage_rate / 1e9, 100 * r.gemm_stage_rate / r.gemm_rate, r.gemm_rate / 1e9,
      100 * r.hardware_flops / r.median_seconds / r.gemm_rate);
  if (r.host_gap_percent)
    fmt::print("host gaps: {:.2f} % of the step; the device is at work on its graph the rest of the time\n",
               *r.host_gap_percent);
  if (a.options.digest) {
    result["state_sha256"] = r.digest;
    fmt::print("state after {} steps: sha256 {}\n", a.options.warmup + int64_t(r.step_seconds.size()),
               r.digest);
  }
  if (!a.out.empty()) write_text(a.out, result.dump());
  fmt::print("RESULT {}\n", result.dump());
  return 0;
}

}  // namespace

void add_bench(CLI::App& command, Action&) {
  command.require_subcommand(1);
  add_example(command, "pleat bench step configs/qwen3-moe-small.toml");
}

void add_bench_step(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<BenchArguments>();
  CLI::App* c = &command;
  c->add_option("config", a->config, "Run configuration (TOML); its data is not read");
  c->add_option("--peer-config", a->peer_config,
                "Instead of CONFIG: a model in the JSON format of the benchmarks of other trainers");
  c->add_option("--steps", a->options.steps, "Timed steps")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  c->add_option("--seconds", a->options.seconds, "Stop after this many seconds of timed steps (0: no limit)");
  c->add_option("--threads", a->threads, "Worker threads (0: all cores)")->check(CLI::NonNegativeNumber);
  c->add_option("--set", a->sets,
                "Override a key of the configuration: section.key=value; section.key= takes it out, as if it "
                "were not set (repeatable)")
      ->allow_extra_args(false);
  c->add_option(
       "--skew", a->skew,
       "Force the fullest expert of each layer to this many times the mean load; 1: balanced; 0: the "
       "router decides")
      ->check(CLI::NonNegativeNumber);
  c->add_option(
      "--choices", a->choices,
      "Algorithms of dense products on a GPU: taken from this file, or written to it where it is new");
  c->add_flag("--digest", a->options.digest,
              "Also give the SHA-256 of the weights and the optimizer's state after the timed steps");
  c->add_option("--out", a->out, "Also write the result line as JSON");
  c->add_option("--svg", a->svg, "Also draw where the time went, beside what the ceilings would allow");
  c->add_option("--label", a->label, "Name of this entry");
  add_example(*c, "pleat bench step configs/qwen3-moe-small.toml --steps 20");
  c->callback([a, &chosen] { chosen = [a] { return run_bench(*a); }; });
}

}  // namespace pleat::apps
