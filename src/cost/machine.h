// A described machine, and how long a stage takes on it. A toy so far: one rate per resource, every group on
// one of two kinds of link, guessed by what the group is for unless the ranks of a machine are declared. What matters is that every figure of a simulated step follows from a few numbers
// that are printed beside it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/mesh.h"
#include "program/program.h"

namespace pleat::cost {

struct Link {
  int64_t latency_ns = 0;
  double bytes_per_ns = 0;  // one way; 0: takes no time beside the latency
};

// Which exchanges stay inside a machine, where it is declared how many ranks share one (schedule/node_reach.h). A group
// is near where all groups of its kind are.
struct NodeReach {
  std::array<bool, program::kNumGroups> near{};  // indexed by program::Group
  std::vector<char> near_cuts;                   // messages from pipeline stage i to the next
};

struct Machine {
  std::string name;
  int64_t launch_ns = 0;    // of every kernel, copy and fill that a stage is made of
  double flops_per_ns = 0;  // of matrix products; 0: no time
  double bytes_per_ns = 0;  // of memory, for what a stage reads and writes; 0: no time
  Link near;                // tensor, context and expert-tensor groups; with `nodes`, what it says
  Link far;                 // all others, and messages along the pipeline
  std::optional<NodeReach> nodes = {};
};
Machine toy_machine();

// Bytes a rank sends to others in this stage; 0 where it is none of theirs to give. Routed values count with
// the rows of balanced routing. A collective of n ranks moves (n - 1) / n of its largest value, an
// all-reduce twice that, a shift round the ring all of it; of one that is not listed nothing is assumed.
double sent_bytes(const model::Mesh& mesh, const program::Program& program, const program::Stage& stage);

// An exchange takes what it sends at the speed of its link; any other stage what its kernel says it computes
// and moves, whichever takes longer, and its launches.
int64_t stage_ns(const Machine& machine, const model::Mesh& mesh, const program::Program& program,
                 const program::Stage& stage);

}  // namespace pleat::cost
