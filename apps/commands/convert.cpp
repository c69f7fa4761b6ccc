#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "commands/model_meter.h"
#include "exchange/convert.h"
#include "report/format.h"

namespace pleat::apps {
namespace {

struct ConvertArguments {
  exchange::ConvertOptions options;
  bool json = false;
};

int convert(ConvertArguments& a) {
  const auto start = std::chrono::steady_clock::now();
  ModelMeter meter("converting", "no model was written");
  a.options.watch = meter.watch();
  const exchange::ConvertResult r = exchange::convert_model(a.options);
  meter.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (a.json) {
    const nlohmann::ordered_json out = {{"out", a.options.out_folder},
                                        {"quantization", r.quantization},
                                        {"dtype", r.dtype},
                                        {"tensors", r.num_tensors},
                                        {"dequantized", r.num_dequantized},
                                        {"bytes_read", r.bytes_read},
                                        {"bytes_written", r.bytes_written},
                                        {"files", r.num_shards},
                                        {"notes", r.notes},
                                        {"seconds", seconds}};
    fmt::print("{}\n", out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return 0;
  }
  for (const std::string& note : r.notes) fmt::print(stderr, "note: {}\n", note);
  fmt::print("{}: {} of {} dequantized to {}, {} from {}, in {}\n", r.quantization, r.num_dequantized,
             base::counted(r.num_tensors, "tensor"), r.dtype, report::format_bytes(double(r.bytes_written)),
             report::format_bytes(double(r.bytes_read)), base::counted(r.num_shards, "file"));
  return 0;
}

}  // namespace

void add_convert(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<ConvertArguments>();
  CLI::App* c = &command;
  c->add_option("model", a->options.model_folder,
                "Model folder with quantized weights: fp8 in blocks, or mxfp4")
      ->required();
  c->add_option("--out", a->options.out_folder, "Model folder to write; new or empty")->required();
  c->add_option(
       "--dtype", a->options.dtype,
       "Of the dequantized weights: bfloat16 or float32 (default: what config.json says). Others keep "
       "their own")
      ->check(CLI::IsMember({"bfloat16", "float32"}));
  c->add_option("--max-shard-bytes", a->options.max_shard_bytes, "Largest size of one file of weights")
      ->check(CLI::PositiveNumber);
  c->add_flag("--json", a->json, "Print the result as JSON");
  add_example(*c, "pleat convert my-fp8-model --out my-model --dtype bfloat16");
  c->callback([a, &chosen] { chosen = [a] { return convert(*a); }; });
}

}  // namespace pleat::apps
