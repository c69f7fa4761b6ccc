#include "exchange/start_state.h"

#include <filesystem>

#include "base/error.h"
#include "base/make_folders.h"
#include "base/posix_vfs.h"
#include "config/run_files.h"
#include "exchange/free_space.h"
#include "model/state.h"
#include "schedule/build.h"
#include "train/trainer.h"

namespace pleat::exchange {

StartState::StartState(const config::Config& config, const std::vector<model::Parameter>& table)
    : config_(config) {
  const program::Program program = schedule::build_training_step(config, table);
  for (const program::Value& v : program.values) {
    // The rule of runtime::Runtime::targets.
    if (v.life != program::Life::Persistent || v.owner == program::Owner::Inputs ||
        v.view_of != program::kNoValue)
      continue;
    const bool is_weight = model::find_parameter(table, v.name) >= 0 ||
                           v.name.ends_with(".router.expert_bias") || v.name.ends_with(model::kRest);
    (is_weight ? weights_ : others_).push_back({v.name, v.dtype, v.shape});
  }
}

checkpoint::SaveResult StartState::save(StartWeights& from, const checkpoint::StreamWatch& watch,
                                        const checkpoint::SaveOptions& options) const {
  checkpoint::StreamedState state;
  for (const checkpoint::Expected& e : weights_) {
    const StartWeights::Kept kept = from.kept(e.name, e.dtype);
    state.tensors.push_back({e.name, kept.dtype, e.shape, kept.zero});
  }
  for (const checkpoint::Expected& e : others_) state.tensors.push_back({e.name, e.dtype, e.shape, true});
  state.integers = {{"data.epoch", 0}, {"data.next_sample", 0}, {"refused_in_row", 0}, {"refused_total", 0}};
  state.texts = {{"config", config::to_toml(config::in_folder(config_, config_.log.run_dir))},
                 {"data", train::kImportedData}};
  state.source = from.identity();
  state.require_same = [&] {
    if (from.identity() != state.source)
      base::fail(
          "the weights changed while they were read: nothing of them is kept; the same command begins anew");
  };
  const std::string& directory = config_.checkpoint.dir;
  base::make_folders(directory);
  base::PosixVfs vfs;
  require_space(directory, checkpoint::bytes_to_stream(vfs, directory, state, options), "the checkpoint");
  return checkpoint::save_streamed(
      vfs, directory, state,
      [&](const std::string& name, int64_t begin, const checkpoint::Sink& sink) {
        from.pour(name, begin, sink);
      },
      options, watch);
}

}  // namespace pleat::exchange
