// pleat bench layer: one MoE layer, router to combination.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/layer_bench.h"
#include "command.h"
#include "device/cuda/cuda.h"
#include "operation_table.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

struct BenchLayerArguments {
  std::vector<std::string> shapes;
  std::string device = "cuda", filter, out;
  bench::LayerOptions options;
  bool json = false;
};

nlohmann::json to_json(const bench::LayerResult& r) {
  return {{"shape", r.shape.name},
          {"T", r.shape.tokens},
          {"D", r.shape.hidden},
          {"I", r.shape.ffn},
          {"E", r.shape.experts},
          {"K", r.shape.top_k},
          {"fwd_ms", r.forward_seconds * 1e3},
          {"fb_ms", r.both_seconds * 1e3},
          {"fwd_tf", r.forward_rate / 1e12},
          {"fb_tf", r.both_rate / 1e12},
          {"load_max_over_mean", r.max_over_mean},
          {"arena_bytes", r.arena_bytes},
          {"operations", operations_json(r.operations)}};
}

std::vector<bench::LayerShape> shapes_of(const BenchLayerArguments& a) {
  std::vector<bench::LayerShape> out;
  for (const std::string& text : a.shapes) out.push_back(bench::parse_layer_shape(text));
  if (!out.empty()) return out;
  if (!a.options.gpu)
    base::fail("--device cpu needs --shape T,D,I,E,K: the models' layers would take the CPU minutes");
  for (const bench::LayerShape& shape : bench::layer_shapes())
    if (shape.name.find(a.filter) != std::string::npos) out.push_back(shape);
  if (out.empty()) base::fail("--filter '{}': no layer has such a name", a.filter);
  return out;
}

int run_layer(BenchLayerArguments a) {
  a.options.gpu = a.device == "cuda";
  const std::vector<bench::LayerShape> shapes = shapes_of(a);
  for (const bench::LayerShape& shape : shapes) bench::layer_config(shape, a.options);  // refuse all at once
  std::string why, where = "CPU, float32";
  if (a.options.gpu) {
    if (device::cuda::num_devices(&why) == 0)
      base::fail("bench layer needs a GPU: {}; or --device cpu with a small --shape", why);
    where = device::cuda::facts().name + ", bfloat16, one graph per run";
    a.options.ceilings = {device::cuda::measure_copy_rate(), device::cuda::measure_gemm_rate()};
  }
  nlohmann::json rows = nlohmann::json::array();
  report::Table table({{"layer"},
                       {"T", report::Align::Right},
                       {"forward ms", report::Align::Right},
                       {"TFLOP/s", report::Align::Right},
                       {"forward + backward ms", report::Align::Right},
                       {"TFLOP/s", report::Align::Right},
                       {"max/mean load", report::Align::Right}});
  std::string breakdown;
  for (const bench::LayerShape& shape : shapes) {
    const bench::LayerResult r = bench::bench_layer(shape, a.options);
    table.add_row({shape.name, std::to_string(shape.tokens), fmt::format("{:.3f}", r.forward_seconds * 1e3),
                   fmt::format("{:.4g}", r.forward_rate / 1e12), fmt::format("{:.3f}", r.both_seconds * 1e3),
                   fmt::format("{:.4g}", r.both_rate / 1e12), fmt::format("{:.3f}", r.max_over_mean)});
    breakdown += fmt::format("\n{}, {} tokens: one forward + backward, stage by stage\n{}", shape.name,
                             shape.tokens, operation_table(r.operations));
    rows.push_back(to_json(r));
  }
  const nlohmann::json result = {{"device", where}, {"skew", a.options.skew}, {"layers", rows}};
  if (a.json)
    fmt::print("{}\n", result.dump());
  else
    fmt::print("{}; router to combination, weight and input gradients; {}\n{}{}", where,
               a.options.skew > 0 ? fmt::format("forced load {:g}", a.options.skew)
                                  : std::string("the router decides"),
               table.text(), breakdown);
  if (!a.out.empty()) write_text(a.out, result.dump());
  return 0;
}

}  // namespace

void add_bench_layer(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<BenchLayerArguments>();
  CLI::App* c = &command;
  c->add_option("--shape", a->shapes, "T,D,I,E,K instead of the models' shapes (repeatable)")
      ->allow_extra_args(false);
  c->add_option("--filter", a->filter, "Only models whose name contains this");
  c->add_option("--device", a->device, "cuda in bfloat16, or cpu in float32")
      ->capture_default_str()
      ->check(CLI::IsMember({"cuda", "cpu"}))
      ->capture_default_str();
  c->add_option("--threads", a->options.threads, "Worker threads on the CPU; 0: all cores")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--repeats", a->options.repeats, "Timed runs of each; the median counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c->add_option(
       "--skew", a->options.skew,
       "Force the fullest expert to this many times the mean load; 1: balanced; 0: the router decides")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--out", a->out, "Also write the result as JSON");
  c->add_flag("--json", a->json, "Print JSON instead of the tables");
  add_example(*c,
              "pleat bench layer --filter qwen3 --skew 4\n"
              "  pleat bench layer --device cpu --shape 512,64,32,8,2");
  c->callback([a, &chosen] { chosen = [a] { return run_layer(*a); }; });
}

}  // namespace pleat::apps
