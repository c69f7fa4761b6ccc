// All of a GPU's memory that a planned step takes: the arena, which holds all the program names, what CUDA takes for
// itself, and what NCCL does where ranks exchange over it; and what its host needs to reach it. For `pleat plan`, and for
// the benchmark that compares it with what was really taken.
#pragma once

#include <cstdint>
#include <string>

#include "interpret/plan/plan.h"

namespace pleat::interpret {

struct DeviceMemory {
  int64_t arena_bytes = 0;
  int64_t context_bytes = 0;      // CUDA's own: context, code of the kernels, handles of the libraries
  bool context_measured = false;  // on the GPU at hand; else what an H200 takes
  int64_t exchange_bytes = 0;     // of what carries exchanges between GPUs, as estimated (cost/nccl_memory.h)
  int64_t window_bytes = 0;       // that other ranks write, with what their meetings need
  int64_t total() const { return arena_bytes + window_bytes + context_bytes + exchange_bytes; }
};

// What is allocated for windows of so many planned bytes: a header in front, and whole pages, since a smaller one may lie
// in an allocation that others could not open by itself. 0 for none.
int64_t allocated_windows(int64_t planned_bytes);

// The context is measured where there is a GPU, so this belongs before the arena is allocated.
DeviceMemory device_memory(const Plan& plan);

// Pinned on the host of a GPU, beside what the plan pins: what is saved, loaded or begun with goes between the device and
// files through it, a piece at a time. It does not grow with the model: two buffers of at most 64 MiB.
int64_t staging_bytes(const Plan& plan);

// "arena 93.1 GiB + CUDA's own context 0.499 GiB (measured on this GPU)"
std::string describe(const DeviceMemory& memory);

}  // namespace pleat::interpret
