#include "cost/machine.h"

#include "base/error.h"

namespace pleat::cost {

double Processor::flops_per_ns(tensor::Dtype dtype) const {
  const double tflops = dtype == tensor::Dtype::BF16  ? bf16_tflops
                        : dtype == tensor::Dtype::F64 ? f64_tflops
                                                      : f32_tflops;
  if (tflops <= 0)
    base::fail("the machine has no rate for products of {}: its file needs processor.{}_tflops",
               tensor::name_of(dtype),
               dtype == tensor::Dtype::BF16  ? "bf16"
               : dtype == tensor::Dtype::F64 ? "f64"
                                             : "f32");
  return tflops * 1e3;
}

}  // namespace pleat::cost
