// A user's own model made small enough to be run in double on one rank and under a layout within seconds,
// with everything kept that layouts could get wrong: the kind of attention, norms, biases, sinks, windows,
// router, balancing, capacity, tied weights, dense and expert layers, multi-token prediction, freezing.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"

namespace pleat::verify {

struct Shrunk {
  config::Config config;             // resolved, float64
  std::vector<std::string> changes;  // "model.hidden_size: 2048 -> 32"
};

// `asked` as loaded. The sizes are the smallest multiples the layout needs.
Shrunk shrink(const config::Config& asked, const model::Mesh& mesh);

}  // namespace pleat::verify
