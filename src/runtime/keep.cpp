#include "runtime/keep.h"

#include "program/edit.h"

namespace pleat::runtime {

program::Program without_update(program::Program p) {
  program::Edit edit(std::move(p));
  edit.erase_if([](const program::Stage& s) { return s.phase == program::Phase::Update; });
  p = edit.apply();
  for (program::Value& v : p.values)
    if (v.name == "grad_scale" || v.name == "commit") v.life = program::Life::Step;
  return p;
}

}  // namespace pleat::runtime
