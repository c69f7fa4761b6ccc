// A step that is quick to plan and simulate, on a GPU with as much memory as a test says.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "schedule/simulated_step.h"
#include "tune/choice.h"

namespace pleat::testing {

// Four layers on a GPU, in bfloat16: 8 sequences of 512 tokens, states of 0.9 GiB, activations of as much.
config::Config gpu_step(const std::vector<std::string>& sets = {});
// An H200 with so much memory.
schedule::Ground gpu_ground(double device_gib, double host_gib = 100);

// Every candidate of a space, in every number of layers.
std::vector<tune::Candidate> every_candidate(const tune::Space& space);

}  // namespace pleat::testing
