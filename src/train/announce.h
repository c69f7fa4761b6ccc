// What a run says when it starts and when it ends.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "train/trainer.h"

namespace pleat::train {

// A few lines: size, ranks, and what of the configuration is not as it was asked. `verbose`: also every key
// that was set or derived, the classes of parameters, and what the GPU's kernels chose.
void announce(const config::Config& asked, Trainer& trainer, const std::string& carrier, bool verbose);

// From the summary: memory, speed, validation, sources, a sample, the digest of the state.
void say_goodbye(const nlohmann::json& summary, const Trainer& trainer);

// "byte bigram on the same split: 4.0153 (the model is 21.2 % higher)". Bits per byte of both.
std::string compared_with_bigram(double bits, double bigram);

}  // namespace pleat::train
