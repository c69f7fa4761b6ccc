// pleat bench kernels: every GPU kernel against the ceiling that binds it.
#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/kernel_bench.h"
#include "command.h"
#include "device/cuda/code_rate.h"
#include "device/cuda/cuda.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

struct BenchKernelsArguments {
  std::string filter, out;
  int repeats = 15;
  bool json = false;
};

int run_kernels(const BenchKernelsArguments& a) {
  std::string why;
  if (device::cuda::num_devices(&why) == 0) base::fail("bench kernels needs a GPU: {}", why);
  const device::cuda::Facts facts = device::cuda::facts();
  bench::Ceilings ceilings;
  ceilings.copy = device::cuda::measure_copy_rate();
  ceilings.gemm = device::cuda::measure_gemm_rate();
  ceilings.codes = device::cuda::measure_codes_rate();
  nlohmann::json result = {{"device", facts.name},
                           {"copy_tb_per_s", ceilings.copy / 1e12},
                           {"gemm_tflops", ceilings.gemm / 1e12},
                           {"codes_tflops", ceilings.codes / 1e12},
                           {"kernels", nlohmann::json::array()}};
  report::Table table({{"group"},
                       {"kernel"},
                       {"ms", report::Align::Right},
                       {"TFLOP/s", report::Align::Right},
                       {"TB/s", report::Align::Right},
                       {"% of ceiling", report::Align::Right},
                       {"note"}});
  for (const bench::KernelCase& c : bench::kernel_cases(a.filter)) {
    bench::KernelResult r;
    try {
      r = bench::run_case(c, ceilings, a.repeats);
    } catch (const base::Error& e) {
      if (e.code() == base::ExitCode::Hardware) throw;
      r.group = c.group, r.name = c.name, r.note = e.what();
    }
    const auto number = [](double x) { return x > 0 ? fmt::format("{:.1f}", x) : std::string("-"); };
    table.add_row({r.group, r.name, fmt::format("{:.3f}", r.milliseconds), number(r.tflops),
                   r.tb_per_s > 0 ? fmt::format("{:.2f}", r.tb_per_s) : "-", number(r.percent), r.note});
    result["kernels"].push_back({{"group", r.group},
                                 {"name", r.name},
                                 {"ms", r.milliseconds},
                                 {"tflops", r.tflops},
                                 {"tb_per_s", r.tb_per_s},
                                 {"percent", r.percent},
                                 {"note", r.note}});
  }
  if (a.json) {
    fmt::print("{}\n", result.dump());
  } else {
    fmt::print(
        "{}, ceilings measured now: copy {:.2f} TB/s, bf16 product {:.0f} TFLOP/s, product of E4M3 codes "
        "{:.0f} TFLOP/s\n{}",
        facts.name, ceilings.copy / 1e12, ceilings.gemm / 1e12, ceilings.codes / 1e12, table.text());
  }
  if (!a.out.empty()) {
    std::ofstream file(a.out);
    file << result.dump();
    if (!file.flush()) base::fail_with(base::ExitCode::Storage, "cannot write '{}'", a.out);
  }
  return 0;
}

}  // namespace

void add_bench_kernels(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<BenchKernelsArguments>();
  CLI::App* c = &command;
  c->add_option("--filter", a->filter, "Only kernels whose name contains this");
  c->add_option("--repeats", a->repeats, "Timed runs of each; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  c->add_option("--out", a->out, "Also write the table as JSON");
  c->add_flag("--json", a->json, "Print JSON instead of the table");
  add_example(*c, "pleat bench kernels --filter grouped");
  c->callback([a, &chosen] { chosen = [a] { return run_kernels(*a); }; });
}

}  // namespace pleat::apps
