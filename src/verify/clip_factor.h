// By how much a step scaled a gradient down (optimizer.clip, clip_by).
#pragma once

#include <string>

#include "config/config.h"
#include "verify/layout_run.h"

namespace pleat::verify {

// Of the tensor `name` in steps[step], from what the run itself says of its gradients.
double clip_factor(const config::Config& config, const LayoutRun& run, size_t step, const std::string& name);

}  // namespace pleat::verify
