// Some steps of a model under a layout, on thread ranks, with everything that can be compared put back
// together as logical tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "model/mesh.h"
#include "model/parameters.h"
#include "schedule/build.h"

namespace pleat::verify {

using Tensor = std::vector<double>;

struct LayerResults {
  std::vector<int64_t> load;
  std::vector<double> losses;
  int64_t dropped = 0;
};

struct StepResults {
  double loss = 0, norm = 0, clip = 0;
  std::map<std::string, Tensor> gradients;  // of what is not frozen
  std::map<int, LayerResults> layers;
};

struct LayoutRun {
  std::vector<StepResults> steps;
  std::map<std::string, Tensor> weights, moments1, moments2;  // after the last step
};

// What a test may break, to see that it is noticed.
enum class Fault : uint8_t { None, ScaleExpertGradients, DropReduction, SkipNorm };

struct RunOptions {
  int64_t num_steps = 3;
  uint64_t seed = 1;
  Fault fault = Fault::None;
};

// `config` must be resolved; roles: one per pipeline rank, empty for the whole model on each. Throws when
// ranks that hold the same element disagree about it.
LayoutRun run_layout(const config::Config& config, const model::Mesh& mesh,
                     const std::vector<model::Role>& roles, const RunOptions& options);

}  // namespace pleat::verify
