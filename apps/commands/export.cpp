#include <CLI/CLI.hpp>

#include "base/counted.h"
#include "base/error.h"
#include "command.h"
#include "commands/model_meter.h"
#include "exchange/export.h"
#include "report/format.h"
#include "run/place.h"

namespace pleat::apps {

void add_export(CLI::App& command, Action& chosen) {
  auto o = std::make_shared<exchange::ExportOptions>();
  CLI::App* c = &command;
  c->add_option("run", o->run_folder, "Folder of the run")->required();
  c->add_option("--out", o->model_folder, "Model folder to write; new or empty")->required();
  c->add_option("--dtype", o->dtype,
                "bf16, f16 or f32 (default: as the imported model; f32 for one from scratch)")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
  c->add_option("--max-shard-bytes", o->max_shard_bytes, "Largest size of one file of weights")
      ->check(CLI::PositiveNumber);
  c->add_flag("--check", o->check, "Read everything back and compare every tensor bit for bit");
  c->add_flag("--without-mtp", o->without_mtp, "Leave layers of multi-token prediction out");
  c->add_option("--step", o->step, "Checkpoint: a step, best, or newest (the default)");
  add_example(*c, "pleat export runs/tuned --out my-model --dtype bf16 --check");
  c->callback([o, &chosen] {
    chosen = [o] {
      run::require_run_folder(o->run_folder);
      ModelMeter meter("exporting", "no model was written");
      o->watch = meter.watch();
      const exchange::ExportResult r = exchange::export_model(*o);
      meter.finish();
      for (const std::string& remark : r.remarks) fmt::print(stderr, "{}\n", remark);
      for (const std::string& note : r.notes) fmt::print(stderr, "note: {}\n", note);
      fmt::print("{} of step {} ({}): {} as {}, {} in {}\n", r.model_type, r.step, r.checkpoint_path,
                 base::counted(r.num_tensors, "tensor"), r.dtype, report::format_bytes(double(r.num_bytes)),
                 base::counted(r.num_shards, "file"));
      if (o->check)
        fmt::print("checked: {} read back, equal bit for bit\n", base::counted(r.num_checked, "tensor"));
      return 0;
    };
  });
}

}  // namespace pleat::apps
