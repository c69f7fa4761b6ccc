#include "runtime/keep.h"

namespace pleat::runtime {

program::Program without_update(program::Program p) {
  std::erase_if(p.stages, [](const program::Stage& s) { return s.phase == program::Phase::Update; });
  for (program::Value& v : p.values)
    if (v.name == "grad_scale" || v.name == "commit") v.life = program::Life::Step;
  return p;
}

}  // namespace pleat::runtime
