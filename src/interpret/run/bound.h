// A program together with its plan, its memory and its executor: for programs that live on their own (probes,
// tests).
#pragma once

#include <memory>

#include "device/cpu/arena.h"
#include "interpret/plan/plan.h"
#include "interpret/run/executor.h"

namespace pleat::interpret {

struct Bound {
  program::Program program;
  Plan plan;
  device::Pool pool;
  device::Arena arena;
  std::unique_ptr<Executor> executor;

  // Checks and plans the program, allocates exactly the plan (filled with a pattern) and binds the kernels.
  Bound(program::Program p, int threads);
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
