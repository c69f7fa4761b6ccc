// Which config.json says what a trained model is.
//
// A config.json describes a model when reading it through its family gives the same forward computation. That
// is checked, never assumed: a proposed file is read back and compared key by key; settings that only matter
// while training (dtype of the weights in memory, initialisation, load balancing by a loss, capacity) may
// differ.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "family/family.h"

namespace pleat::exchange {

// "key: described -> trained" for every setting of the forward computation that differs; empty when
// `described` fits.
std::vector<std::string> forward_differences(const config::Config& described, const config::Config& trained);

struct Description {
  family::FamilyConfig model;
  std::string json;
};

// For a model trained from scratch: the first of llama, qwen3 (dense), mixtral, qwen3_moe, olmoe, qwen2_moe
// (experts) that can say it. When none can, the error lists what the nearest one would say differently.
// `trained` must be resolved.
// The ids that begin and end texts are the tokenizer's and left null (exchange/companion_files.h).
Description describe(const config::Config& trained);

}  // namespace pleat::exchange
