#include "interpret/run/bound.h"

#include "base/error.h"
#include "interpret/check/check.h"

namespace pleat::interpret {

Bound::Bound(program::Program p, int threads, Device device)
    : program(std::move(p)),
      plan(interpret::plan(program)),
      pool(threads),
      machine(device == Device::Cuda ? std::make_unique<CudaMachine>(plan.arena_bytes) : nullptr),
      arena(machine ? plan.persistent_bytes : plan.arena_bytes) {
  require_ok(check(program), "program " + program.name);
  require_ok(check_plan(program, plan), "plan of program " + program.name);
  if (machine) {
    executor = std::make_unique<CudaExecutor>(program, plan, *machine, CudaOptions{});
    return;
  }
  arena.fill_pattern();
  executor = std::make_unique<Executor>(program, plan, arena.data(), pool);
}

std::byte* Bound::state(program::ValueId value) const {
  const int64_t offset = plan.offset[static_cast<size_t>(value)];
  PLEAT_CHECK(offset >= 0 && offset < plan.persistent_bytes, "'{}' is not persistent",
              program.values[static_cast<size_t>(value)].name);
  return arena.data() + offset;
}

void Bound::push_state() {
  if (machine) machine->write(0, arena.data(), plan.persistent_bytes);
}

}  // namespace pleat::interpret
