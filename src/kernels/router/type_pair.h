// Picks a kernel by compute type C and router type R. The router is never narrower than the model.
#pragma once

#include "kernels/bind.h"

namespace pleat::kernels {

template <template <class, class> class KernelFor>
Kernel select_pair(std::string_view kernel, tensor::Dtype compute, tensor::Dtype router) {
  using tensor::Dtype;
  if (compute == Dtype::F32 && router == Dtype::F32) return &KernelFor<float, float>::run;
  if (compute == Dtype::F32 && router == Dtype::F64) return &KernelFor<float, double>::run;
  if (compute == Dtype::F64 && router == Dtype::F64) return &KernelFor<double, double>::run;
  base::fail("[{}] compute type {} with router type {} is not supported; needed f32/f32, f32/f64 or f64/f64",
             kernel, tensor::name_of(compute), tensor::name_of(router));
}

}  // namespace pleat::kernels
