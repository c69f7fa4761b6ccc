// A Hugging Face model folder becomes a run: a config, a checkpoint of step 0, and the files an export needs
// again.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"

namespace pleat::exchange {

struct ImportOptions {
  std::string model_folder;
  std::string run_folder;         // new or empty, or of the same import, which was cut short
  std::vector<std::string> sets;  // "section.key=value" on top of what the family says
  // Of the checkpoint: what lies between two places that an import can go on from.
  int64_t max_shard_bytes = checkpoint::SaveOptions().max_shard_bytes;
  checkpoint::StreamWatch watch = {};
};

struct ImportResult {
  std::string model_type;
  int64_t num_tensors = 0, num_parameters = 0, num_bytes = 0;  // bytes: of the checkpoint's files
  std::string checkpoint_path;
  std::vector<std::string> notes;  // what was left out or has no meaning here
  std::string balancing_note;  // how experts are balanced and why (exchange/balancing.h); empty: no experts
  std::string tokenizer_note;  // what stands before training on text; empty: nothing does
};

// Writes run_folder/IMPORT (what is imported, until it is done), run_folder/source/ (config.json,
// generation_config.json, tokenizer files), run_folder/checkpoints/step-0 (weights in the folder's own type where that
// is exact, the routers' correction biases, and zeros, which take no room) and, last, asked.toml and config.toml, whose
// data.tokenizer is run_folder/source where that holds one. Names, shapes and types of all tensors are checked before
// anything is written. Memory: a few MiB, and what exchange/weights.h says; never more for a deeper model.
//
// Cut short, it is no run yet, and the same import goes on behind what was written. An import of another folder there
// is refused. Weights that cannot be used (not finite) leave the folder as it was.
ImportResult import_model(const ImportOptions& options);

}  // namespace pleat::exchange
