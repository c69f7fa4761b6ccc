#include "kernels/bind.h"

namespace pleat::kernels {

Resolve find_cpu_kernel(program::KernelKind kind, program::Phase phase) {
  for (auto rows : {embedding_bindings(), linear_bindings(), rmsnorm_bindings(), rope_bindings(),
                    mla_bindings(), attention_bindings(), cached_attention_bindings(), mla_decode_bindings(),
                    swiglu_bindings(), sigmoid_gate_bindings(), router_bindings(), dispatch_bindings(),
                    grouped_linear_bindings(), rows_bindings(), cross_entropy_bindings(),
                    token_score_bindings(), mtp_bindings(), optimizer_bindings(), shares_bindings()})
    for (const Binding& row : rows)
      if (row.kind == kind && row.phase == phase) return row.resolve;
  return nullptr;
}

}  // namespace pleat::kernels
