#include "kernels/bind.h"

namespace pleat::kernels {

Resolve find_cpu_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows : {
#define PLEAT_FOLDER(name) name##_bindings(),
#define PLEAT_CPU_FOLDER(name) PLEAT_FOLDER(name)
#include "kernels/folders.def"
       })
    for (const Binding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.resolve;
  return nullptr;
}

}  // namespace pleat::kernels
