// The GPU rows of the router folder.
#include "kernels/router/router_cuda.h"

namespace pleat::kernels {

std::span<const CudaBinding> router_cuda_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr CudaBinding kRows[] = {
      {KernelKind::jitter, Phase::Forward, prepare_jitter_forward},
      {KernelKind::jitter, Phase::BackwardInput, prepare_jitter_backward_input},
      {KernelKind::router_force, Phase::Forward, prepare_router_force},
      {KernelKind::router_gate, Phase::Forward, prepare_router_gate_forward},
      {KernelKind::router_gate, Phase::BackwardInput, prepare_router_gate_backward_input},
      {KernelKind::router_gate, Phase::BackwardWeight, prepare_router_gate_backward_weight},
      {KernelKind::router_choose, Phase::Forward, prepare_router_choose_forward},
      {KernelKind::router_choose, Phase::BackwardInput, prepare_router_choose_backward_input},
      {KernelKind::router_count, Phase::Forward, prepare_router_count},
      {KernelKind::router_aux, Phase::BackwardInput, prepare_router_aux},
  };
  return kRows;
}

}  // namespace pleat::kernels
