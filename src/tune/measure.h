// What a configuration would take and how long a step of it would last: by the plan and the simulation that `plan`,
// `simulate` and `train` go by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/config.h"
#include "schedule/simulated_step.h"
#include "train/memory_fit.h"

namespace pleat::tune {

struct Measured {
  std::string refusal;  // why there is no such step; empty: there is
  std::string
      untrained;  // why `train` refuses it on its device, though it can be planned; empty: it does not
  train::MemoryFit fit;
  int64_t device_bytes = 0;  // of a rank of the fullest pipeline stage
  schedule::StepFigures figures;
  int64_t step_ns = 0;

  bool possible() const { return refusal.empty(); }
  bool trains() const { return possible() && untrained.empty(); }
  bool fits() const { return possible() && fit.fits(); }
  // Bytes beyond what the machine has, of the device and of its host; negative: free. A CPU's ranks have their node's.
  int64_t device_over(cost::MachineKind kind) const;
  int64_t host_over() const { return fit.host_bytes - fit.host_limit; }
  int64_t over(cost::MachineKind kind) const;  // the larger
};

// Why `train` refuses the configuration on its device, in its own words; empty: it does not. It need not be valid.
std::string untrained(const config::Config& config);

// `asked` as a space makes it (tune/choice.h): what the program refuses is a refusal, not an error.
Measured measure(const config::Config& asked, int64_t num_ranks, const schedule::Ground& ground);

// The same for several, on the cores of this process, two at most. In the order of the list, whatever the cores do.
std::vector<Measured> measure_all(const std::vector<config::Config>& asked, int64_t num_ranks,
                                  const schedule::Ground& ground);

}  // namespace pleat::tune
