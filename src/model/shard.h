// Which part of a logical tensor a rank holds, read off the ownership record alone: the same for weights,
// gradients, checkpoints and import. A sharded dimension is cut inside each of its logical blocks (q | k | v,
// gate | up), so that every rank holds a part of every block, in the blocks' order. A vocabulary that does
// not divide is padded at its end: the runs of the last ranks are shorter than their local shape.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
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

// Where ranks cut the parameter at a place that is no multiple of `unit` elements of the logical tensor; every 0: nowhere.
struct CutOf {
  int64_t every = 0;
  const char* key = "";  // parallel.tp, ..
  int64_t ranks = 1;
};
CutOf uneven_cut(const Parameter& parameter, const Mesh& mesh, int64_t unit);

// Elements of a logical tensor after which the way ranks cut it repeats: all from the last dimension that is cut on;
// the whole tensor where none is.
int64_t row_elements(const Parameter& parameter, const Mesh& mesh);

// Whether the pipeline rank computes with the parameter. Layers of multi-token prediction live where the head
// is, and bring the embedding there.
bool holds(const config::Config& config, const Role& role, const Parameter& parameter);
bool holds_layer(const config::Config& config, const Role& role, int layer);

// Who sums the gradient of a parameter and who updates which part of it. The gradient is a sum over
// `reduction`. Its ranks are cut into runs of num_owners: inside a run every element of the local tensor is
// owned by exactly one rank, owner r has elements [r share, (r + 1) share); across the runs the state is
// repeated. One run, which is the usual case, is the whole group. As runs follow each other in the group, the
// first of them are the ranks whose place in `reduction` is below num_owners: they speak for the state.
struct Ownership {
  program::Group reduction{}, inside{}, across{};
  int64_t num_owners = 1, num_copies = 1;  // ranks of `inside` and `across`
  int64_t elements = 0, share = 0;         // of the local tensor, padding included; of an owner
  bool summed() const { return num_owners * num_copies > 1; }
};
Ownership ownership(const Parameter& parameter, const Mesh& mesh);
// The part of `runs` (local_runs) that owner r = place in `inside` has, counted from the start of its share.
std::vector<Run> share_runs(const std::vector<Run>& runs, const Ownership& own, int64_t owner);

}  // namespace pleat::model
