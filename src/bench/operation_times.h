// Where the time of a run went, by operation and phase.
#pragma once

#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "interpret/trace/timeline.h"

namespace pleat::bench {

struct OperationTime {
  std::string name;  // "dgrad expert_up"
  int64_t count = 0;
  double seconds = 0, flops = 0;  // of all of them
  double floor_seconds = 0;       // what they would take at the ceilings; 0: not known
};

// Longest first; lanes that run side by side are counted both. The floor of a stage is its products at the
// one ceiling or the bytes it reads and writes at the other, whichever takes longer.
std::vector<OperationTime> operation_times(const program::Program& program,
                                           const interpret::Timeline& timeline,
                                           const Ceilings& ceilings = {});

}  // namespace pleat::bench
