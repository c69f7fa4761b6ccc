// A run becomes a Hugging Face model folder that transformers loads as it is: sharded safetensors with index,
// config.json, generation_config.json and the tokenizer files of the source or of data.tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"

namespace pleat::exchange {

struct ExportOptions {
  std::string run_folder;
  std::string model_folder;  // new or empty
  std::string
      dtype;  // bf16 | f16 | f32; empty: what the source's config.json says, f32 for a model from scratch
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  bool check = false;        // read everything back and compare bit for bit
  bool without_mtp = false;  // leave layers of multi-token prediction out
  std::string step = {};     // which checkpoint (checkpoint::parse_which)
  checkpoint::StreamWatch watch = {};
};

struct ExportResult {
  std::string checkpoint_path, model_type, dtype;
  int64_t step = 0, num_tensors = 0, num_shards = 0, num_bytes = 0;
  int64_t num_checked = 0;  // tensors compared; 0 without check
  std::vector<std::string> notes;
  std::vector<std::string> remarks;  // the step used, and what was passed over
};

// From one checkpoint. The config.json is the source's where the run was imported (with
// another dtype when asked for) and must still describe the model; else one that does is made
// (exchange/describe.h). Correction biases stay F32. A number that is not finite in the dtype asked for is an
// error. Memory: what exchange/parameter_stream.h says. Nothing has its final name before all of it is
// written, and config.json comes last. What a killed export left in the folder is removed by the next.
ExportResult export_model(const ExportOptions& options);

}  // namespace pleat::exchange
