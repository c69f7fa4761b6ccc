#include "interpret/run/bound.h"

#include "interpret/check/check.h"

namespace pleat::interpret {

Bound::Bound(program::Program p, int threads)
    : program(std::move(p)), plan(interpret::plan(program)), pool(threads), arena(plan.arena_bytes) {
  require_ok(check(program), "program " + program.name);
  require_ok(check_plan(program, plan), "plan of program " + program.name);
  arena.fill_pattern();
  executor = std::make_unique<Executor>(program, plan, arena.data(), pool);
}

}  // namespace pleat::interpret
