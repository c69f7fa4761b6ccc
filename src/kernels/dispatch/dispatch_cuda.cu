// The GPU rows of the dispatch folder.
#include "kernels/dispatch/dispatch_cuda.h"

namespace pleat::kernels {

std::span<const CudaBinding> dispatch_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding kRows[] = {
      {KernelKind::dispatch_plan, Phase::Forward, prepare_dispatch_plan},
      {KernelKind::permute, Phase::Forward, prepare_permute_forward},
      {KernelKind::permute, Phase::BackwardInput, prepare_permute_backward_input},
      {KernelKind::combine, Phase::Forward, prepare_combine_forward},
      {KernelKind::combine, Phase::BackwardInput, prepare_combine_backward_input},
      {KernelKind::gather_plan, Phase::Forward, prepare_gather_plan},
      {KernelKind::receive_plan, Phase::Forward, prepare_receive_plan},
      {KernelKind::trim_plan, Phase::Forward, prepare_trim_plan},
      {KernelKind::combine_ranks, Phase::Forward, prepare_combine_ranks},
      {KernelKind::permute_ranks, Phase::BackwardInput, prepare_permute_ranks},
  };
  return kRows;
}

}  // namespace pleat::kernels
