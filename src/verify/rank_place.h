// Where a rank of a mesh sits, for runs that are given a mesh and no configuration of one.
#pragma once

#include "train/rank_setup.h"

namespace pleat::verify {

using train::RankPlace;

RankPlace rank_place(const model::Mesh& mesh, int rank);

}  // namespace pleat::verify
