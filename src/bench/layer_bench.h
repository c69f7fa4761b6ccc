// One MoE layer alone, router to combination, forward and forward + backward: the program that training runs
// for it, on random numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/operation_times.h"
#include "config/config.h"

namespace pleat::bench {

struct LayerShape {
  std::string name;
  int64_t tokens = 0, hidden = 0, ffn = 0, experts = 0, top_k = 0;
};

// Layers of the models the peers measure.
const std::vector<LayerShape>& layer_shapes();
// "T,D,I,E,K": tokens, hidden width, width of an expert, experts, experts per token.
LayerShape parse_layer_shape(const std::string& text);

struct LayerOptions {
  bool gpu = true;  // bfloat16; else the CPU in float32
  int64_t threads = 0;
  int repeats = 20;
  double skew = 0;            // rows of the fullest expert over the mean, forced; 0: what the router decides
  Ceilings ceilings;          // for the floors of LayerResult::operations
  bool check_finite = false;  // look at every number the layer writes, which takes long
};

config::Config layer_config(const LayerShape& shape, const LayerOptions& options);

struct LayerResult {
  LayerShape shape;
  double forward_seconds = 0, both_seconds = 0;  // medians; both: forward + backward
  double forward_rate = 0, both_rate = 0;        // model FLOP/s: 6 T K D I forward, three times that in all
  double max_over_mean = 0;                      // load of the experts, the mean over all runs
  int64_t arena_bytes = 0;
  std::vector<OperationTime> operations;  // of one forward + backward, stage by stage
};
// Throws naming the stage when check_finite finds a number that is not.
LayerResult bench_layer(const LayerShape& shape, const LayerOptions& options);

}  // namespace pleat::bench
