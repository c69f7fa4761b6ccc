// The part of `pleat doctor` that talks: which groups of ranks are exercised, over what, and which GPU each rank has.
#pragma once

#include <string>
#include <vector>

#include "comm/exercise.h"
#include "comm/world.h"
#include "config/config.h"

namespace pleat::apps {

// Groups of one kind, as one rank sees them.
struct DoctorGroup {
  std::string name;        // "tp"
  std::vector<int> ranks;  // of this rank's group; empty: it is in none
  std::string also = {};   // kinds with the same ranks, which are not exercised again: "edp, tp-cp"
};
// Every kind of the layout that [parallel] makes of `size` ranks and that has several of them.
std::vector<DoctorGroup> groups_of_layout(const config::Config& config, int size, int rank);
// The whole world and, in an even world, its pairs: two groups of one name at work side by side.
std::vector<DoctorGroup> world_and_pairs(int size, int rank);

struct DoctorResult {
  std::string name;
  int size = 0;
  comm::Buffers buffers = comm::Buffers::Host;
  // The slowest of all groups of the kind; a fault names the lowest rank that saw one.
  std::vector<comm::Exercised> operations;
  int64_t device_bytes = 0;  // what the first rank's group took of its GPU
  std::string also = {};
};
// Called by all ranks; every one gets the same results, also of groups it is not in.
std::vector<DoctorResult> exercise_groups(comm::Endpoint& endpoint, const std::vector<DoctorGroup>& groups,
                                          comm::Buffers buffers, const comm::ExerciseSize& size);

struct RankGpu {
  std::string machine, name, bus;
  std::string reaches;  // places of GPUs whose memory it reaches by itself
  std::string threads;  // where its threads are
  int gpu = -1;         // among those the process sees; -1: it has none
};
// This process takes its GPU and binds its threads near it. Throws where there is none.
RankGpu take_gpu_of_rank(const comm::World& world);
// Called by all ranks: everybody's, by rank.
std::vector<RankGpu> gpus_of_ranks(comm::Endpoint& endpoint, const RankGpu& mine);

}  // namespace pleat::apps
