// A program together with its plan, its memory and its executor: for programs that live on their own (probes,
// tests).
#pragma once

#include <memory>

#include "device/cpu/arena.h"
#include "interpret/plan/plan.h"
#include "interpret/run/cuda_executor.h"
#include "interpret/run/executor.h"

namespace pleat::interpret {

struct Bound {
  program::Program program;
  Plan plan;
  device::Pool pool;
  std::unique_ptr<CudaMachine> machine;  // on a GPU
  device::Arena arena;                   // everything; on a GPU the host's copy of the state
  std::unique_ptr<Executor> executor;

  // Checks and plans the program, allocates exactly the plan (filled with a pattern) and binds the kernels.
  enum class Device : uint8_t { Cpu, Cuda };
  Bound(program::Program p, int threads, Device device = Device::Cpu);

  // Where the host writes a persistent value; push_state() sends all of them to the device (on the CPU it
  // does nothing).
  std::byte* state(program::ValueId value) const;
  void push_state();
};

// The same program with the values for which `keep` holds alive to the end of the step, so that they can be
// read.
template <class Keep>
program::Program with_results(program::Program p, Keep keep) {
  for (program::Value& v : p.values)
    if (v.life == program::Life::Step && v.view_of == program::kNoValue && keep(v))
      v.life = program::Life::Result;
  return p;
}

}  // namespace pleat::interpret
