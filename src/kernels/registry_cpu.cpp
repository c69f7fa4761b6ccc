#include "kernels/bind.h"

namespace pleat::kernels {

Resolve find_cpu_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows : {
#define PLEAT_TABLE(name) name##_bindings(),
#define PLEAT_CPU_TABLE(name) PLEAT_TABLE(name)
#include "kernels/tables.def"
       })
    for (const Binding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.resolve;
  return nullptr;
}

}  // namespace pleat::kernels
