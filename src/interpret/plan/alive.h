// What is in the device's memory at the peak of a plan, tensor by tensor.
#pragma once

#include <string>
#include <vector>

#include "interpret/plan/plan.h"

namespace pleat::interpret {

// Values of one role in the model: "attn_normed" of all layers and microbatches.
struct AliveTensors {
  std::string what;  // the value's name without microbatch, chunk, layer and row range
  program::Owner owner{};
  int count = 0;
  int64_t bytes = 0;  // of all of them, as the arena holds them
};

// Largest first. The bytes add up to plan.live_peak_bytes, and by owner to plan.at_peak.
std::vector<AliveTensors> alive_at_peak(const program::Program& program, const program::Order& order,
                                        const Plan& plan);

}  // namespace pleat::interpret
