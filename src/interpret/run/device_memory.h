// All of a GPU's memory that a planned step takes: the arena, and what lies outside it. The plan is exact
// about the arena; this says the rest before the first byte is allocated, for `pleat plan` and for the
// benchmark that compares it with what was really taken.
#pragma once

#include <cstdint>
#include <string>

#include "interpret/plan/plan.h"
#include "program/program.h"

namespace pleat::interpret {

struct DeviceMemory {
  int64_t arena_bytes = 0;
  int64_t workspace_bytes = 0;    // scratch of all lanes: each as much as its most demanding stage
  int64_t context_bytes = 0;      // CUDA context, code of the kernels, handles of the libraries
  bool context_measured = false;  // on the GPU at hand; else what an H200 takes
  int64_t total() const { return arena_bytes + workspace_bytes + context_bytes; }
};

// Matrix products take what they are granted (kernels/cuda/workspace.h); attention's backward a float32 copy
// of its gradient and row statistics, which is an estimate: the library is asked when the step is bound. The
// context is measured where there is a GPU, so this belongs before the arena is allocated.
DeviceMemory device_memory(const program::Program& program, const Plan& plan);

// "arena 93.1 GiB + workspaces 64 MiB + context 511 MiB (measured on this GPU)"
std::string describe(const DeviceMemory& memory);

}  // namespace pleat::interpret
