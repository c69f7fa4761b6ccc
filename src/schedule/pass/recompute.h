// Recompute: what the forward of a chosen module produced is freed after its forward consumers and rebuilt,
// by the same kernels on the same inputs, right before the backward stage that first needs it. Exact: the
// same calls give the same bits. Routing decisions are never rebuilt, so counters count once.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "program/program.h"

namespace pleat::schedule {

struct RecomputeOptions {
  std::vector<std::string> modules;  // norm activation core_attention experts shared_experts layer
  std::vector<bool> layers;          // which layers; empty: all
  // The program is a pipeline rank's part of the model: a module that others hold is no mistake.
  bool is_part = false;
};

// Throws base::Error when a module would free nothing in these layers in any of the programs, the parts of one
// model, naming it.
void require_freed(std::span<const program::Program> parts, const RecomputeOptions& options);

// The same of what the ranks of a layout hold, all stages of the pipeline together. `config` must be resolved, with the
// layout.
void require_freed_by_ranks(const config::Config& config);

// After require_freed, unless the program is a part.
program::Program recompute(program::Program program, const RecomputeOptions& options);

// Values the pass would free for this module: produced by its forward stages and read by a backward stage.
std::vector<program::ValueId> freed_by(const program::Program& program, const std::string& module,
                                       const std::vector<bool>& layers);

}  // namespace pleat::schedule
