// A model folder with quantized weights (safetensors/quantized/scheme.h) becomes one with plain weights, which
// any program reads. It needs no family: only quantization_config has to be known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/save_streamed.h"

namespace pleat::exchange {

struct ConvertOptions {
  std::string model_folder;
  std::string out_folder;  // new or empty
  std::string
      dtype;  // of decoded weights: bfloat16 | float32; empty: what config.json says, bfloat16 where nothing
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
  checkpoint::StreamWatch watch = {};
};

struct ConvertResult {
  std::string quantization, dtype;
  int64_t num_tensors = 0, num_dequantized = 0, num_shards = 0;
  int64_t bytes_read = 0, bytes_written = 0;  // of tensors
  std::vector<std::string> notes;
};

// Tensors that are plain keep type and bytes. Decoded ones are rounded once more for bfloat16 where they are
// float32 (fp8); mxfp4 is exact in both. config.json loses quantization_config, says the dtype, and is written
// last, so that a folder whose conversion was stopped is no model. Tokenizer and other small files are copied.
// Memory: a few pieces of one tensor, however large the folder is. A folder without quantized weights is an error.
ConvertResult convert_model(const ConvertOptions& options);

}  // namespace pleat::exchange
