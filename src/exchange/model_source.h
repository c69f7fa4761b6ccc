// A model to be used, from a run folder (config.toml and checkpoints) or a Hugging Face model folder
// (config.json and safetensors).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/choose.h"
#include "infer/inference.h"

namespace pleat::exchange {

struct ModelSourceOptions {
  // "float32", "float64", or empty: what the run says; float32 for a run in bfloat16 and for a model folder.
  std::string dtype;
  int64_t threads = 0;    // 0: all cores
  std::string tokenizer;  // "byte", a file or a folder; empty: what the source says
  std::string step = {};  // of a run: which checkpoint (checkpoint::parse_which)
};

struct ModelSource {
  std::string folder;
  bool is_run = false;
  config::Config config;            // resolved
  int64_t max_context = 0;          // tokens the model was made for
  std::string max_context_key;      // where that number comes from, for messages
  std::string tokenizer;            // for infer::Vocabulary; empty: the source has none
  std::vector<int32_t> end_tokens;  // of generation_config.json
  // Of a run: the checkpoint, held against pruning as long as this lives.
  std::shared_ptr<const checkpoint::Reading> reading;
  // For the console: the step used, and what was passed over.
  std::vector<std::string> remarks;

  // Reads the checkpoint, or the model's tensors, into `model`, which must have been made from `config`.
  // Returns what was read, for the console.
  std::string load(infer::Inference& model) const;
};

// Chooses and verifies the checkpoint of a run; otherwise reads no weights. The model of a run is the one its
// checkpoint was saved with. Throws when the folder is neither.
ModelSource open_model_source(const std::string& folder, const ModelSourceOptions& options = {});

}  // namespace pleat::exchange
