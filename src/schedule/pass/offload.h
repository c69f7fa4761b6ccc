// Offload: what a chosen module saves for its backward waits for it in the host's memory. The copy out is a stage on lane
// d2h behind the last reader of the forward, the copy back one on lane h2d ahead of the first reader of the backward, which
// reads a value of its own from then on. Exact: bytes are copied. Which values: schedule/pass/saved.h; each goes once.
//
// Time and memory are bounded by the same number. The compute lane is cut into blocks, each the attention or the MLP of
// one layer of one microbatch, forward or backward, or the head. With `ahead` n
//   a fetch starts no earlier than n blocks before the block that reads what it brings, and never before the logits of
//   its microbatch are gone, where a step takes most memory,
//   block b + n + 1 waits for the copies of what was read last in block b.
// So the device holds what n blocks save on its way out and what n blocks need on its way in, and no more; the compute
// lane waits where a copy takes longer than n blocks compute, and never for more than the oldest of these copies. These
// waits are also what lets `plan` give the bytes away: to stages behind the block that waits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "program/program.h"
#include "schedule/pass/saved.h"

namespace pleat::schedule {

struct OffloadOptions {
  std::vector<std::string> modules;  // of offload_modules(), or "layer"
  std::vector<bool> layers;          // which layers; empty: all
  double fraction = 1;               // of a chunk's modules of layers that save something, in forward order
  // Of a forward whose backward follows at once, the last layers, chosen or not, that stay.
  int64_t keep_last = 1;
  int64_t ahead = 2;      // blocks
  int64_t min_bytes = 0;  // what is smaller stays
  // The program is a pipeline rank's part of the model: a module that others hold is no mistake.
  bool is_part = false;
};
OffloadOptions offload_options(const config::Config& config);  // `config` must be resolved

// Values that go to the host, by microbatch, chunk, layer, module.
std::vector<SavedValue> offloaded_values(const program::Program& program, const OffloadOptions& options);

// Throws base::Error when a module would move nothing in any of the programs, the parts of one model, saying why.
void require_offloaded(std::span<const program::Program> parts, const OffloadOptions& options);
// The same of what the ranks of a layout hold, all stages of the pipeline together. `config` must be resolved, with the
// layout.
void require_offloaded_by_ranks(const config::Config& config);

// After require_offloaded, unless the program is a part.
program::Program offload(program::Program program, const OffloadOptions& options);

}  // namespace pleat::schedule
