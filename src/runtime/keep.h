// Training steps changed for a look: values kept to be read, no update.
#pragma once

#include "program/program.h"

namespace pleat::runtime {

// The same program with the values for which `keep` holds alive to the end of the step.
template <class Keep>
program::Program with_results(program::Program p, Keep keep) {
  for (program::Value& v : p.values)
    if (v.life == program::Life::Step && v.view_of == program::kNoValue && keep(v))
      v.life = program::Life::Result;
  return p;
}

// A training step that ends with its gradients and leaves the weights as they are.
program::Program without_update(program::Program p);

}  // namespace pleat::runtime
