// Which kernel and phase the arguments of a signature belong to: a row of a table names its signature, and no more.
#pragma once

#include "program/signature.h"

namespace pleat::kernels {

template <template <class> class Args>
struct StageOf;

#define PLEAT_PHASE(kernel_name, phase_name, fields)                              \
  template <>                                                                     \
  struct StageOf<program::signature::kernel_name::phase_name> {                   \
    static constexpr program::KernelKind kind = program::KernelKind::kernel_name; \
    static constexpr program::Phase phase = program::Phase::phase_name;           \
  };
#include "program/ops.def"

}  // namespace pleat::kernels
