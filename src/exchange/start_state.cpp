#include "exchange/start_state.h"

#include "base/make_folders.h"
#include "base/posix_vfs.h"
#include "config/run_files.h"
#include "model/state.h"
#include "schedule/build.h"
#include "train/trainer.h"

namespace pleat::exchange {

StartState::StartState(const config::Config& config, const std::vector<model::Parameter>& table)
    : config_(config) {
  const program::Program program = schedule::build_training_step(config, table);
  std::vector<const program::Value*> zero;
  for (const program::Value& v : program.values) {
    // The rule of runtime::Runtime::targets.
    if (v.life != program::Life::Persistent || v.owner == program::Owner::Inputs ||
        v.view_of != program::kNoValue)
      continue;
    const size_t size = static_cast<size_t>(program::num_bytes(v));
    if (model::find_parameter(table, v.name) < 0 && !v.name.ends_with(".router.expert_bias") &&
        !v.name.ends_with(model::kRest)) {
      zero.push_back(&v);
      if (zeros_.size() < size) zeros_.resize(size);
      continue;
    }
    owned_.emplace_back(size);
    targets_.push_back({v.name, v.dtype, v.shape, owned_.back()});
    view_.tensors.push_back({v.name, v.dtype, v.shape, owned_.back()});
  }
  for (const program::Value* v : zero)
    view_.tensors.push_back(
        {v->name, v->dtype, v->shape, std::span(zeros_).first(static_cast<size_t>(program::num_bytes(*v)))});
  view_.step = 0;
  view_.integers = {{"data.epoch", 0}, {"data.next_sample", 0}, {"refused_in_row", 0}, {"refused_total", 0}};
  view_.texts = {{"config", config::to_toml(config::in_folder(config, config.log.run_dir))},
                 {"data", train::kImportedData}};
}

checkpoint::SaveResult StartState::save() const {
  base::make_folders(config_.checkpoint.dir);
  base::PosixVfs vfs;
  return checkpoint::save(vfs, config_.checkpoint.dir, view_, {});
}

}  // namespace pleat::exchange
