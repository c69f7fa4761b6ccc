// pleat bench grouped: times one grouped product after the other as it is asked to on standard input, so that
// another program (tools/compare_grouped.py) can take turns with it on one GPU.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/grouped_request.h"
#include "command.h"
#include "device/cuda/cuda.h"

namespace pleat::apps {
namespace {

void answer(const nlohmann::json& what) { std::cout << what.dump() << std::endl; }

int run_grouped() {
  std::string why;
  if (device::cuda::num_devices(&why) == 0) base::fail("bench grouped needs a GPU: {}", why);
  std::unique_ptr<bench::PreparedKernel> kernel;
  for (std::string line; std::getline(std::cin, line);) {
    const bench::GroupedRequest request = bench::parse_grouped_request(line);
    if (request.product) {
      kernel.reset();  // its memory first
      try {
        kernel = std::make_unique<bench::PreparedKernel>(bench::grouped_case(*request.product));
      } catch (const base::Error& e) {
        if (e.code() == base::ExitCode::Hardware) throw;
        answer({{"error", e.what()}});
        continue;
      }
      answer(kernel->missing().empty() ? nlohmann::json{{"ready", true}}
                                       : nlohmann::json{{"error", kernel->missing()}});
      continue;
    }
    if (!kernel || !kernel->missing().empty())
      base::fail("asked to run {} times, but no product is ready", request.runs);
    std::vector<double> ms;
    for (const double seconds : kernel->cold_seconds(request.runs)) ms.push_back(seconds * 1e3);
    answer({{"ms", ms}});
  }
  return 0;
}

}  // namespace

void add_bench_grouped(CLI::App& command, Action& chosen) {
  CLI::App* c = &command;
  add_example(*c, "pleat bench grouped < requests.jsonl");
  c->callback([&chosen] { chosen = [] { return run_grouped(); }; });
}

}  // namespace pleat::apps
