// The rows of the router folder.
#include "kernels/router/router.h"

namespace pleat::kernels {

std::span<const Binding> router_bindings() {
  using program::KernelKind;
  using program::Phase;
  static constexpr Binding kRows[] = {
      {KernelKind::jitter, Phase::Forward, resolve_jitter_forward},
      {KernelKind::jitter, Phase::BackwardInput, resolve_jitter_backward_input},
      {KernelKind::router_force, Phase::Forward, resolve_router_force},
      {KernelKind::router_gate, Phase::Forward, resolve_router_gate_forward},
      {KernelKind::router_gate, Phase::BackwardInput, resolve_router_gate_backward_input},
      {KernelKind::router_gate, Phase::BackwardWeight, resolve_router_gate_backward_weight},
      {KernelKind::router_choose, Phase::Forward, resolve_router_choose_forward},
      {KernelKind::router_choose, Phase::BackwardInput, resolve_router_choose_backward_input},
      {KernelKind::router_count, Phase::Forward, resolve_router_count},
      {KernelKind::router_aux, Phase::BackwardInput, resolve_router_aux},
  };
  return kRows;
}

}  // namespace pleat::kernels
