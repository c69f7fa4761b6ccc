// A step in bfloat16 on the CPU, which has no kernels for it: the float32 step, in which whatever the same program
// would store in bfloat16 is rounded to it where it is written. Sums inside a kernel are in float32, as on a GPU.
#pragma once

#include <set>
#include <string>

#include "schedule/build.h"

namespace pleat::verify {

// The values that the training step of `config`, and the one with room for every routed row, hold in bfloat16 when
// model.dtype says so.
std::set<std::string> narrow_names(const config::Config& config, const std::vector<model::Parameter>& table,
                                   const schedule::BuildOptions& build);

// The float32 program with a stage that rounds behind every stage that computes one of these. What lives across
// steps is left alone.
program::Program with_narrow_stores(program::Program program, const std::set<std::string>& names);

}  // namespace pleat::verify
