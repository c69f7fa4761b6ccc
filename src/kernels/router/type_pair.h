// Picks a kernel by compute type C and router type R (routing_checks.h).
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

struct TypePair {
  std::optional<tensor::Dtype> compute;  // nothing: no kernel
  tensor::Dtype router;
};

template <template <class, class> class KernelFor>
static Kernel select_pair(TypePair types) {
  using tensor::Dtype;
  const auto [compute, router] = types;
  if (compute == Dtype::F32 && router == Dtype::F32) return &KernelFor<float, float>::run;
  if (compute == Dtype::F32 && router == Dtype::F64) return &KernelFor<float, double>::run;
  if (compute == Dtype::F64 && router == Dtype::F64) return &KernelFor<double, double>::run;
  return nullptr;
}

// A row of a kernel for such pairs; `types_of` reads them off the arguments.
template <template <class> class Args, template <class, class> class KernelFor, class TypesOf>
constexpr Binding pair_row(TypesOf) {
  return row<Args>(
      [](const Invocation& call) { return select_pair<KernelFor>(TypesOf{}(Args<Arg>(call.args))); });
}

}  // namespace pleat::kernels
