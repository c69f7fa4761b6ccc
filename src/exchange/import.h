// A Hugging Face model folder becomes a run: a config, a checkpoint of step 0, and the files an export needs
// again.
#pragma once

#include <string>
#include <vector>

namespace pleat::exchange {

struct ImportOptions {
  std::string model_folder;
  std::string run_folder;         // new or empty
  std::vector<std::string> sets;  // "section.key=value" on top of what the family says
};

struct ImportResult {
  std::string model_type;
  int64_t num_tensors = 0, num_parameters = 0;
  std::string checkpoint_path;
  std::vector<std::string> notes;  // what was left out or has no meaning here
  std::string balancing_note;  // how experts are balanced and why (exchange/balancing.h); empty: no experts
  std::string tokenizer_note;  // what stands before training on text; empty: nothing does
};

// Writes run_folder/source/ (config.json, generation_config.json, tokenizer files),
// run_folder/checkpoints/step-0 (weights in the model's dtype, moments zero, the routers' correction biases)
// and, last, asked.toml and config.toml, whose data.tokenizer is run_folder/source where that holds one. Nothing
// is written before every tensor has been read. Memory: the weights, one tensor, and zeros as long as the
// largest parameter.
ImportResult import_model(const ImportOptions& options);

}  // namespace pleat::exchange
