// Which part of a logical tensor a rank holds, read off the ownership record alone: the same for weights,
// gradients, checkpoints and import. A sharded dimension is cut inside each of its logical blocks (q | k | v,
// gate | up), so that every rank holds a part of every block, in the blocks' order. A vocabulary that does
// not divide is padded at its end: the runs of the last ranks are shorter than their local shape.
#pragma once

#include <cstdint>
#include <vector>

#include "model/mesh.h"
#include "model/parameter.h"

namespace pleat::model {

// `count` elements in a row of the logical tensor and of the rank's own.
struct Run {
  int64_t logical_begin = 0, local_begin = 0, count = 0;
  bool operator==(const Run&) const = default;
};

// A rank's place along the axes that cut weights.
struct Place {
  int64_t tensor = 0, expert = 0, expert_tensor = 0;
};

// Throws when an axis does not divide a dimension, naming both.
std::vector<int64_t> local_shape(const Parameter& parameter, const Mesh& mesh);
std::vector<Run> local_runs(const Parameter& parameter, const Mesh& mesh, const Place& place);

// The group over which the gradient is a sum, and the optimizer state is cut: every element of the tensor is
// owned by exactly one rank of it.
program::Group reduction_group(const Parameter& parameter);

}  // namespace pleat::model
