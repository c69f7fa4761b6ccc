#include <CLI/CLI.hpp>

#include "base/error.h"
#include "command.h"
#include "commands/model_meter.h"
#include "exchange/import.h"
#include "report/format.h"

namespace pleat::apps {

void add_import(CLI::App& command, Action& chosen) {
  auto o = std::make_shared<exchange::ImportOptions>();
  CLI::App* c = &command;
  c->add_option("model", o->model_folder, "Model folder (config.json and safetensors)")->required();
  c->add_option("--out", o->run_folder,
                "Folder of the run; new or empty, or of this import when it was cut short")
      ->required();
  c->add_option("--set", o->sets,
                "Override a key of the run's config: section.key=value; section.key= takes it out, as if it "
                "were not set (repeatable)")
      ->allow_extra_args(false);
  add_example(*c,
              "pleat import my-model --out runs/tuned && pleat train runs/tuned --set "
              "data.train=notes.jsonl");
  c->callback([o, &chosen] {
    chosen = [o] {
      ModelMeter meter("importing");
      o->watch = meter.watch();
      const exchange::ImportResult r = exchange::import_model(*o);
      meter.finish();
      for (const std::string& note : r.notes) fmt::print(stderr, "note: {}\n", note);
      if (!r.balancing_note.empty()) fmt::print(stderr, "note: {}\n", r.balancing_note);
      if (!r.tokenizer_note.empty()) fmt::print(stderr, "note: {}\n", r.tokenizer_note);
      fmt::print("{}: {} parameters from {} tensors in {}, {}\n", r.model_type,
                 report::format_count(double(r.num_parameters)), r.num_tensors, r.checkpoint_path,
                 report::format_bytes(double(r.num_bytes)));
      return 0;
    };
  });
}

}  // namespace pleat::apps
