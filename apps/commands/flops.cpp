#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "command.h"
#include "cost/flops.h"
#include "family/family.h"
#include "model/parameters.h"
#include "report/format.h"
#include "report/table.h"

namespace pleat::apps {
namespace {

struct FlopsArgument {
  std::string path;
  std::vector<std::string> sets;
  int64_t seq_len = 0;  // 0: as length_of says
  bool json = false;
};

constexpr int64_t kUsualLength = 4096;

// Descriptions of published models set none.
int64_t length_of(const FlopsArgument& a, const config::Config& c) {
  if (a.seq_len > 0) return a.seq_len;
  return c.asked.contains("train.seq_len") ? c.train.seq_len : kUsualLength;
}

// A run configuration, or the config.json of a Hugging Face model folder.
config::Config model_of(const FlopsArgument& a) {
  if (std::filesystem::is_directory(a.path) && std::filesystem::exists(a.path + "/config.json"))
    return config::resolve(family::read_model_config(a.path, a.sets).config);
  if (std::filesystem::is_directory(a.path))
    base::fail("'{}' holds no config.json; needed is a run configuration or a model folder", a.path);
  return config::resolve(config::load(a.path, a.sets));
}

// Of small models too: at least three digits that count, and no fewer than three places.
std::string giga(double flops) {
  const double value = flops / 1e9;
  const int places = value >= 1 ? 3 : static_cast<int>(std::ceil(-std::log10(value))) + 2;
  return fmt::format("{:.{}f}", value, std::max(places, 3));
}

int count(const FlopsArgument& a) {
  const config::Config c = model_of(a);
  if (c.model.vocab_size == 0)
    base::fail("model.vocab_size is taken from the tokenizer; give it with --set model.vocab_size=N");
  const model::ParameterCount size = model::count_parameters(c, model::make_parameters(c));
  const int64_t seq_len = length_of(a, c);
  const cost::ModelFlops f = cost::model_flops(c, 1, double(seq_len));
  const std::pair<const char*, double> parts[] = {{"attention_projections", f.attention_projections},
                                                  {"attention_core", f.attention_core},
                                                  {"dense_mlp", f.dense},
                                                  {"routed_experts", f.routed},
                                                  {"shared_experts", f.shared},
                                                  {"head", f.head},
                                                  {"mtp", f.mtp}};
  if (a.json) {
    nlohmann::ordered_json out = {
        {"seq_len", seq_len},
        {"parameters", {{"total", size.total}, {"active", size.active}, {"mtp", size.mtp}}}};
    for (const auto& [name, flops] : parts) out["flops_per_token"][name] = flops;
    out["flops_per_token"]["total"] = f.total();
    fmt::print("{}\n", out.dump(1));
    return 0;
  }
  fmt::print("{} parameters, {} active per token", report::format_count(double(size.total)),
             report::format_count(double(size.active)));
  if (size.mtp > 0) fmt::print("; {} more in multi-token prediction", report::format_count(double(size.mtp)));
  fmt::print("\n\n");
  report::Table table({{"training, sequences of " + std::to_string(seq_len)},
                       {"GFLOP/token", report::Align::Right},
                       {"", report::Align::Right}});
  for (const auto& [name, flops] : parts)
    if (flops > 0) table.add_row({name, giga(flops), fmt::format("{:.1f} %", 100 * flops / f.total())});
  table.add_rule();
  table.add_row({"total", giga(f.total()), ""});
  fmt::print("{}", table.text());
  return 0;
}

}  // namespace

void add_flops(CLI::App& command, Action& chosen) {
  auto a = std::make_shared<FlopsArgument>();
  CLI::App* c = &command;
  c->add_option("model", a->path, "Run configuration (TOML) or folder of a Hugging Face model")->required();
  c->add_option(
       "--seq", a->seq_len,
       fmt::format(
           "Length of the sequences (default: train.seq_len where the configuration sets it, else {})",
           kUsualLength))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  c->add_option(
       "--set", a->sets,
       "Override a key: section.key=value; section.key= takes it out, as if it were not set (repeatable)")
      ->allow_extra_args(false);
  c->add_flag("--json", a->json, "Machine-readable output");
  add_example(*c, "pleat flops configs/models/deepseek-v3.toml --seq 4096");
  c->callback([a, &chosen] { chosen = [a] { return count(*a); }; });
}

}  // namespace pleat::apps
