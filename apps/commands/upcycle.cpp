#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "commands/model_meter.h"
#include "exchange/upcycle.h"
#include "report/format.h"

namespace pleat::apps {

void add_upcycle(CLI::App& command, Action& chosen) {
  auto o = std::make_shared<exchange::UpcycleOptions>();
  CLI::App* c = &command;
  c->add_option("dense", o->dense, "Hugging Face folder of family llama or qwen3, or a run of such a model")
      ->required();
  c->add_option("--out", o->model_folder, "Model folder to write (mixtral or qwen3_moe); new or empty")
      ->required();
  c->add_option("--experts", o->num_experts, "Experts per layer")->required();
  c->add_option("--top-k", o->top_k, "Experts per token")->capture_default_str();
  c->add_option("--granularity", o->granularity,
                "Shards the dense MLP is cut into; divides experts and width")
      ->capture_default_str();
  c->add_flag_callback(
      "--pre-softmax", [o] { o->normalized = false; },
      "Softmax over all experts, the chosen ones not normalised again (qwen3 only)");
  c->add_option("--router-init-std", o->router_init_std,
                "Spread of the router's weights (default: the dense model's initializer_range)")
      ->check(CLI::NonNegativeNumber);
  c->add_option("--seed", o->seed, "Seed of the router's weights")->capture_default_str();
  c->add_option_function<std::string>(
       "--scaling",
       [o](const std::string& name) {
         o->scaling =
             name == "linear" ? exchange::UpcycleScaling::Linear : exchange::UpcycleScaling::CubeRoot;
       },
       "linear: up and down carry the scale, exact; cube-root: gate, up and down alike, approximate with "
       "silu")
      ->check(CLI::IsMember({"linear", "cube-root"}))
      ->default_str("linear");
  c->add_option("--max-shard-bytes", o->max_shard_bytes, "Largest size of one file of weights")
      ->check(CLI::PositiveNumber);
  add_example(*c, "pleat upcycle my-dense-model --out my-moe --experts 16 --top-k 4 --granularity 2");
  c->callback([o, &chosen] {
    chosen = [o] {
      ModelMeter meter("writing", "no model was written");
      o->watch = meter.watch();
      const exchange::UpcycleResult r = exchange::upcycle(*o);
      meter.finish();
      const exchange::UpcycleStart& s = r.start;
      for (const std::string& note : r.notes) fmt::print(stderr, "note: {}\n", note);
      fmt::print("{}: {} parameters, {} per token (dense: {}); {} tensors, {} in {} file{}\n", r.model_type,
                 report::format_count(double(r.total_parameters)),
                 report::format_count(double(r.active_parameters)),
                 report::format_count(double(r.dense_parameters)), r.num_tensors,
                 report::format_bytes(double(r.num_bytes)), r.num_shards, r.num_shards == 1 ? "" : "s");
      fmt::print("scale {:.6g}: gate x {:.6g}, up x {:.6g}, down x {:.6g}; router std {:.6g}, seed {}\n",
                 s.scale, s.gate, s.up, s.down, r.router_init_std, o->seed);
      fmt::print("start: {}: {}{}\n", s.exact ? "exact" : "approximate", s.why,
                 s.exact && s.rounds ? "; the scaled weights are rounded to their type" : "");
      return 0;
    };
  });
}

}  // namespace pleat::apps
