// What an import says about how its experts are kept evenly used: what was chosen, why, and how to have it
// otherwise.
//
// The rule is transformers': its models are trained with the auxiliary loss only where config.json has
// output_router_logits = true, and the correction bias of DeepSeek-V3 is added but never moved.
#pragma once

#include <string>

#include "family/family.h"

namespace pleat::exchange {

// `described` is what config.json says, `chosen` what the run has after every --set. Empty for a dense model.
std::string balancing_note(const family::FamilyConfig& described, const config::Config& chosen);

}  // namespace pleat::exchange
