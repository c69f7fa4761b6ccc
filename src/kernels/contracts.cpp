// Finds the contract of a row of program/ops.def: check and work must exist for every one of them.
#include "kernels/attention/contract.h"
#include "kernels/cached_attention/contract.h"
#include "kernels/collectives/contract.h"
#include "kernels/cross_entropy/contract.h"
#include "kernels/dispatch/contract.h"
#include "kernels/embedding/contract.h"
#include "kernels/grouped_linear/contract.h"
#include "kernels/linear/contract.h"
#include "kernels/mla/contract.h"
#include "kernels/mla_decode/contract.h"
#include "kernels/mtp/contract.h"
#include "kernels/optimizer/contract.h"
#include "kernels/rmsnorm/contract.h"
#include "kernels/rope/contract.h"
#include "kernels/router/contract.h"
#include "kernels/rows/contract.h"
#include "kernels/shares/contract.h"
#include "kernels/sigmoid_gate/contract.h"
#include "kernels/swiglu/contract.h"
#include "kernels/token_score/contract.h"

namespace pleat::kernels {
namespace {

constexpr int row_of(program::KernelKind kind, program::Phase phase) {
  return static_cast<int>(kind) * 4 + static_cast<int>(phase);
}

[[noreturn]] void no_such_row(program::KernelKind kind, program::Phase phase) {
  base::fail_with(base::ExitCode::Internal, "kernel {} has no phase {}", name_of(kind), name_of(phase));
}

}  // namespace

void check_contract(program::KernelKind kind, program::Phase phase, const Invocation& call) {
  using program::KernelKind;
  using program::Phase;
  switch (row_of(kind, phase)) {
#define PLEAT_PHASE(kernel, phase_, arguments)    \
  case row_of(KernelKind::kernel, Phase::phase_): \
    return check(signature::kernel::phase_<Arg>(call.args), call);
#include "program/ops.def"
    default:
      no_such_row(kind, phase);
  }
}

Work work_of(program::KernelKind kind, program::Phase phase, const Invocation& call) {
  using program::KernelKind;
  using program::Phase;
  switch (row_of(kind, phase)) {
#define PLEAT_PHASE(kernel, phase_, arguments)    \
  case row_of(KernelKind::kernel, Phase::phase_): \
    return work(signature::kernel::phase_<Arg>(call.args), call);
#include "program/ops.def"
    default:
      no_such_row(kind, phase);
  }
}

}  // namespace pleat::kernels
