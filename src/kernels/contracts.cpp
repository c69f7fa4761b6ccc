// Finds the contract of a row of program/ops.def: check, work and scratch_bytes must exist for every one of
// them.
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
#include "kernels/quantize/contract.h"
#include "kernels/rmsnorm/contract.h"
#include "kernels/rope/contract.h"
#include "kernels/router/contract.h"
#include "kernels/rows/contract.h"
#include "kernels/scaled_linear/contract.h"
#include "kernels/shares/contract.h"
#include "kernels/sigmoid_gate/contract.h"
#include "kernels/swiglu/contract.h"
#include "kernels/token_score/contract.h"
#include "kernels/windows/contract.h"

namespace pleat::kernels {
namespace {

template <class Row>
concept HasContract = requires(const Row& args, const Invocation& call, const Gpu& gpu) {
  check(args, call);
  work(args, call);
  scratch_bytes(args, call, gpu);
};
// A row without them is told by its name; the compiler's own answer to a call is the list of all others.
#define PLEAT_PHASE(kernel, phase, arguments)                   \
  static_assert(HasContract<signature::kernel::phase<Arg>>,     \
                "phase " #phase " of kernel " #kernel           \
                " has no check, work or scratch_bytes, or the " \
                "contract.h that holds them is not included above");
#include "program/ops.def"

template <class Row>
void check_row(const Invocation& call) {
  if constexpr (HasContract<Row>) check(Row(call.args), call);
}
template <class Row>
Work work_row(const Invocation& call) {
  if constexpr (HasContract<Row>)
    return work(Row(call.args), call);
  else
    return {};
}
template <class Row>
int64_t scratch_row(const Invocation& call, const Gpu& gpu) {
  if constexpr (HasContract<Row>)
    return scratch_bytes(Row(call.args), call, gpu);
  else
    return {};
}

constexpr int row_of(program::KernelKind kind, program::Phase phase) {
  return static_cast<int>(kind) * 4 + static_cast<int>(phase);
}

[[noreturn]] void no_such_row(program::KernelKind kind, program::Phase phase) {
  base::fail_with(base::ExitCode::Internal, "kernel {} has no phase {}", name_of(kind), name_of(phase));
}

// Only IN_IF, OUT_IF and SUM_IF may be absent; CHANGE reads what it overwrites, OUT cannot add.
void check_uses(program::KernelKind kind, program::Phase phase, std::span<const Arg> args) {
  const auto& arguments = program::arguments_of(kind, phase);
  if (!program::takes(arguments, args.size())) return;  // the row's struct says so
  for (size_t i = 0; i < args.size(); ++i) {
    const program::Argument& argument = program::argument_of(arguments, args.size(), i);
    const Arg& arg = args[i];
    if (!arg.present && !argument.optional) refuse(arg, "argument '{}' is missing", arg.name);
    if (!arg.present) continue;
    if (argument.in_place && arg.access != program::Access::Update)
      refuse(arg, "argument '{}' is changed in place, so its use must be an update", arg.name);
    if (argument.output && !argument.may_update && arg.access != program::Access::Write)
      refuse(arg, "output '{}' can only be overwritten", arg.name);
  }
}

}  // namespace

void check_contract(program::KernelKind kind, program::Phase phase, const Invocation& call) {
  using program::KernelKind;
  using program::Phase;
  check_uses(kind, phase, call.args);
  switch (row_of(kind, phase)) {
#define PLEAT_PHASE(kernel, phase_, arguments)    \
  case row_of(KernelKind::kernel, Phase::phase_): \
    return check_row<signature::kernel::phase_<Arg>>(call);
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
    return work_row<signature::kernel::phase_<Arg>>(call);
#include "program/ops.def"
    default:
      no_such_row(kind, phase);
  }
}

int64_t scratch_of(program::KernelKind kind, program::Phase phase, const Invocation& call, const Gpu& gpu) {
  using program::KernelKind;
  using program::Phase;
  switch (row_of(kind, phase)) {
#define PLEAT_PHASE(kernel, phase_, arguments)    \
  case row_of(KernelKind::kernel, Phase::phase_): \
    return scratch_row<signature::kernel::phase_<Arg>>(call, gpu);
#include "program/ops.def"
    default:
      no_such_row(kind, phase);
  }
}

void check_scratch(program::KernelKind kind, program::Phase phase, const Invocation& call, const Gpu& gpu) {
  const int64_t needed = scratch_of(kind, phase, call, gpu);
  if (needed > static_cast<int64_t>(call.scratch.size()))
    base::fail_with(base::ExitCode::Internal, "[{} {}] got {} bytes of scratch, needed {}", name_of(kind),
                    name_of(phase), call.scratch.size(), needed);
}

}  // namespace pleat::kernels
