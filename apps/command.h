// A sub-command of `pleat`: adds itself to the command line and says what to run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "config/config.h"
#include "exchange/model_source.h"
#include "layout/layout.h"

namespace CLI {
class App;
}

namespace pleat::apps {

// What the chosen sub-command does; returns the exit code of the process.
using Action = std::function<int()>;

// Each adds options, example and callback to its row of the table (command_table.h); the callback stores its
// action in `chosen`.
void add_train(CLI::App& command, Action& chosen);
void add_launch(CLI::App& command, Action& chosen);
void add_plan(CLI::App& command, Action& chosen);
void add_fit(CLI::App& command, Action& chosen);
void add_flops(CLI::App& command, Action& chosen);
void add_explain(CLI::App& command, Action& chosen);
void add_explain_config(CLI::App& command, Action& chosen);
void add_layout(CLI::App& command, Action& chosen);
void add_verify_layout(CLI::App& command, Action& chosen);
void add_report(CLI::App& command, Action& chosen);
void add_trace(CLI::App& command, Action& chosen);
void add_simulate(CLI::App& command, Action& chosen);
void add_machines(CLI::App& command, Action& chosen);
void add_generate(CLI::App& command, Action& chosen);
void add_eval(CLI::App& command, Action& chosen);
void add_data(CLI::App& command, Action& chosen);
void add_data_tokenize(CLI::App& command, Action& chosen);
void add_data_train_tokenizer(CLI::App& command, Action& chosen);
void add_data_inspect(CLI::App& command, Action& chosen);
void add_probe(CLI::App& command, Action& chosen);
void add_import(CLI::App& command, Action& chosen);
void add_export(CLI::App& command, Action& chosen);
void add_convert(CLI::App& command, Action& chosen);
void add_upcycle(CLI::App& command, Action& chosen);
void add_bench(CLI::App& command, Action& chosen);
void add_bench_kernels(CLI::App& command, Action& chosen);
void add_bench_grouped(CLI::App& command, Action& chosen);
void add_bench_layer(CLI::App& command, Action& chosen);
void add_bench_costs(CLI::App& command, Action& chosen);
void add_bench_fit(CLI::App& command, Action& chosen);
void add_bench_step(CLI::App& command, Action& chosen);
void add_doctor(CLI::App& command, Action& chosen);
void add_completion(CLI::App& command, Action& chosen);
void add_help(CLI::App& command, Action& chosen);

// CONFIG and --set, shared by every command that reads a run configuration.
struct ConfigArgument {
  std::string path;
  std::vector<std::string> sets;
  config::Config load() const;      // validated, as asked
  config::Config resolved() const;  // with every derived value filled in
};
void add_config_argument(CLI::App& command, ConfigArgument& argument);

// Ranks that cannot run here (train::carrier_fault) may be planned and simulated: says so on standard error.
void note_carrier(int64_t num_ranks);
// What `pleat plan` and `pleat train` would refuse about a resolved configuration on ranks that make its layout, such as
// the number of microbatches: for commands that only look at the layout, on standard error.
void note_refusal(const config::Config& config, const layout::Layout& layout);

// SOURCE, --tokenizer, --dtype and --threads, shared by the commands that use a model.
struct ModelArgument {
  std::string folder;
  exchange::ModelSourceOptions options;
};
void add_model_argument(CLI::App& command, ModelArgument& argument);

// Writes a file whole; throws (storage) when that fails.
void write_text(const std::string& path, const std::string& text);

// The footer every --help ends in.
void add_example(CLI::App& command, const std::string& example);

}  // namespace pleat::apps
