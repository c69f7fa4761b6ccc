// Where a rank sits: its place in each of its groups, and who else is there.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/mesh.h"
#include "model/shard.h"

namespace pleat::verify {

struct RankPlace {
  int rank = 0;
  std::array<int64_t, program::kNumGroups> coords{};
  std::array<std::vector<int>, program::kNumGroups> members;  // world ranks in group order

  int64_t at(program::Group group) const { return coords[static_cast<size_t>(group)]; }
  model::Place weights() const {
    return {at(program::Group::Tensor), at(program::Group::Expert), at(program::Group::ExpertTensor)};
  }
};

RankPlace rank_place(const model::Mesh& mesh, int rank);

}  // namespace pleat::verify
