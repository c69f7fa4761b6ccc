// A user's own model made small enough to be run on one rank and under a layout within seconds, with everything
// kept that layouts could get wrong: the kind of attention, norms, biases, sinks, windows, router, balancing,
// capacity, token budget, tied weights, dense and expert layers, their places in a pipeline, multi-token
// prediction, freezing.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"

namespace pleat::verify {

// Float64 runs on the CPU. Asked is model.dtype on device.kind: widths that kernels take in one go, more tokens.
// AskedOnCpu is the same on the CPU, with float32 in place of bfloat16 (RunOptions::narrow rounds).
enum class SmallCopy : uint8_t { Float64, Asked, AskedOnCpu };

struct Shrunk {
  config::Config config;             // resolved, without the layout
  std::vector<std::string> changes;  // "model.hidden_size: 2048 -> 32"
  std::vector<model::Role> roles;    // one per pipeline rank, empty where there is none
};

// `asked` as loaded. The sizes are the smallest multiples the layout needs. With parallel.pipeline_layout all
// layers stay, and stay where it says.
Shrunk shrink(const config::Config& asked, const model::Mesh& mesh, SmallCopy copy = SmallCopy::Float64);

}  // namespace pleat::verify
