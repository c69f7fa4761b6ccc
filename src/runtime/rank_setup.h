// One rank of a run: its place on both meshes, the groups it is in, and the part of the model it computes.
// Everything a rank does differently from the others follows from this and from nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "config/config.h"
#include "layout/layout.h"
#include "model/mesh.h"
#include "model/shard.h"

namespace pleat::runtime {

struct RankPlace {
  int rank = 0;
  std::array<int64_t, program::kNumGroups> coords{};          // position in each group; -1: in none
  std::array<std::vector<int>, program::kNumGroups> members;  // world ranks in group order

  int64_t at(program::Group group) const { return coords[static_cast<size_t>(group)]; }
  model::Place weights() const {
    return {at(program::Group::Tensor), at(program::Group::Expert), at(program::Group::ExpertTensor)};
  }
};

// Groups as schedule::group_members orders them.
RankPlace rank_place(const layout::Layout& layout, int rank);
RankPlace rank_place(const model::Mesh& mesh, int rank);

struct RankSetup {
  model::Mesh mesh;
  model::Role role;
  RankPlace place;

  int world() const { return static_cast<int>(mesh.world()); }
  int rank() const { return place.rank; }
  bool alone() const { return mesh.world() == 1; }
  // Whether this rank speaks for its data replica: of all ranks that read the same microbatches, one.
  bool leads_replica() const;
  // Microbatches of a step this rank computes.
  int64_t num_microbatches(const config::Config& config) const {
    return config.train.num_microbatches / mesh.dp;
  }
};

// Throws when the layout does not divide the ranks, the model, or the batch, with the equation.
RankSetup rank_setup(const config::Config& config, int world, int rank);
RankSetup one_rank(const config::Config& config);

}  // namespace pleat::runtime
