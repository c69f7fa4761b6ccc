// Picks a kernel by compute type C and router type R (routing_checks.h).
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

template <template <class, class> class KernelFor>
Kernel select_pair(tensor::Dtype compute, tensor::Dtype router) {
  using tensor::Dtype;
  if (compute == Dtype::F32 && router == Dtype::F32) return &KernelFor<float, float>::run;
  if (compute == Dtype::F32 && router == Dtype::F64) return &KernelFor<float, double>::run;
  if (compute == Dtype::F64 && router == Dtype::F64) return &KernelFor<double, double>::run;
  return nullptr;
}

}  // namespace pleat::kernels
