// Where the time of a node's step goes: work on its compute lanes, what shows of everything else, and nothing at all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "interpret/trace/timeline.h"

namespace pleat::interpret {

struct StepPart {
  std::string name;
  int64_t held_ns = 0;     // some stage of it is under way
  int64_t exposed_ns = 0;  // of that, while nothing that is listed before it is
};

struct StepParts {
  int64_t work_ns = 0;          // kernels on compute lanes
  std::vector<StepPart> parts;  // in order of first appearance
  int64_t idle_ns = 0;          // no stage is under way: it waits for other ranks
  // work + every exposed + idle = step.
};

// What a stage belongs to; "": work.
using PartOf = std::function<std::string(const program::Program&, const program::Stage&)>;

StepParts step_parts(const program::Program& program, const Timeline& timeline, int64_t step_ns,
                     const PartOf& part_of);

}  // namespace pleat::interpret
