// Persistent values that follow from the configuration and the rank: written once, never saved.
#pragma once

#include "config/config.h"
#include "runtime/rank_setup.h"
#include "runtime/runtime.h"

namespace pleat::runtime {

// Of all programs: frequencies of the rotation, and the rank's place in every group.
void write_constants(Runtime& runtime, const config::ModelConfig& model, const RankPlace& place);

}  // namespace pleat::runtime
