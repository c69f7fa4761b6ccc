// All of a GPU's memory that a planned step takes, and what its host holds of it: the arena, which holds all the program
// names, what CUDA takes
// for itself, and what NCCL does where ranks exchange over it. For `pleat plan`, and for the benchmark that compares it with what was really taken.
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

// What a process with a GPU holds of it on its host: a place for every byte that lives across steps on the device. What is
// saved, loaded or begun with goes through it.
int64_t host_mirror(const Plan& plan);

// "arena 93.1 GiB + CUDA's own context 0.499 GiB (measured on this GPU)"
std::string describe(const DeviceMemory& memory);

}  // namespace pleat::interpret
