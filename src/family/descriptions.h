// The description files of this folder.
#pragma once

#include "family/family.h"

namespace pleat::family {

extern const Family kLlama, kQwen3, kMixtral, kQwen2Moe, kQwen3Moe, kOlmoe, kDeepseekV2, kDeepseekV3, kGptOss;

// norm_topk_prob: softmax over the chosen logits when set, softmax over all otherwise.
void read_softmax_router(const ConfigReader& in, config::Config& config, bool normalised_by_default);

}  // namespace pleat::family
