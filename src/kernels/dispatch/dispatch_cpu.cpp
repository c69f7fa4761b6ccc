// The rows of the dispatch folder.
#include "kernels/dispatch/dispatch.h"

namespace pleat::kernels {

std::span<const Binding> dispatch_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding kRows[] = {
      {KernelKind::dispatch_plan, Phase::Forward, resolve_dispatch_plan},
      {KernelKind::permute, Phase::Forward, resolve_permute_forward},
      {KernelKind::permute, Phase::BackwardInput, resolve_permute_backward_input},
      {KernelKind::combine, Phase::Forward, resolve_combine_forward},
      {KernelKind::combine, Phase::BackwardInput, resolve_combine_backward_input},
      {KernelKind::gather_plan, Phase::Forward, resolve_gather_plan},
      {KernelKind::receive_plan, Phase::Forward, resolve_receive_plan},
      {KernelKind::trim_plan, Phase::Forward, resolve_trim_plan},
      {KernelKind::combine_ranks, Phase::Forward, resolve_combine_ranks},
      {KernelKind::permute_ranks, Phase::BackwardInput, resolve_permute_ranks},
  };
  return kRows;
}

}  // namespace pleat::kernels
