// What every pass moved: the step of a layout as it was built and after each pass, measured the same way each
// time. All numbers are whole, so the changes add up to the last row exactly, and that row is the final plan.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "config/config.h"
#include "interpret/plan/plan.h"
#include "program/program.h"
#include "schedule/ranks.h"
#include "schedule/simulated_step.h"

namespace pleat::schedule {

using SpaceBytes = std::array<int64_t, program::kNumSpaces>;  // indexed by program::Space
using GroupBytes = std::array<int64_t, program::kNumGroups>;  // indexed by program::Group

struct LedgerRow {
  std::string name;      // "as built", or the pass
  int64_t stages = 0;    // of the program
  SpaceBytes at_peak{};  // live bytes at the peak of each space
  SpaceBytes arena{};    // what a run allocates of each
  GroupBytes sent{};     // bytes a rank sends in a step, by group; messages are the pipeline's
  int64_t step_ns = 0;   // of all ranks together, simulated
  bool operator==(const LedgerRow&) const = default;
};

// What led from one row to another, under the name of the second.
LedgerRow change(const LedgerRow& from, const LedgerRow& to);

// One row: the programs of a layout as they are now, seen from one pipeline rank.
LedgerRow measure(std::string name, const config::Config& config, const RankPrograms& ranks,
                  size_t pipeline_rank, const Ground& ground);

// A row "as built", then one for every pass that some rank wants. `config` must be resolved.
std::vector<LedgerRow> ledger(const config::Config& config, int64_t num_ranks, size_t pipeline_rank,
                              const Ground& ground);

}  // namespace pleat::schedule
